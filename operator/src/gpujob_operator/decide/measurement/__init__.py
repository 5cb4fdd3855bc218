"""Derives what is known of a workload from its runs: memory, utilization, step time, slowdown.

The reservation of an attempt follows from it. The package may import capacity, packing and model.
"""
