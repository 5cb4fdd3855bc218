"""Derives memory, utilization, step time and slowdown of a workload from its runs.

The reservation of an attempt follows from them. The package may import capacity, packing and model.
"""
