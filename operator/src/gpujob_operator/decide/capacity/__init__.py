"""What the cluster has: nodes and GPUs with their tenants, prices and the law of slowdowns.

The package decides nothing about a pending job. It may import `model`, and `packing` for numbers.
"""
