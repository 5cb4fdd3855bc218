"""Decides on which node and GPUs a job's workers go, and explains why a job fits nowhere.

The filter, the assumed capacity and the diagnosis are here. `packing` chooses between the nodes
that fit. The package may import measurement, capacity, packing and model.
"""
