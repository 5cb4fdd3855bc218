"""The cluster's capacity: nodes and GPUs with their tenants, prices, and the slowdown law.

The package decides nothing about a pending job. It may import `model`, and `packing` for numbers.
"""
