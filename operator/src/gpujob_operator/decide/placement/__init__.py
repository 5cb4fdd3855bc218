"""Decides on which node and GPUs a job's workers go; for a job that fits nowhere, says why not.

The filter, the assumed capacity and the diagnosis are here. The choice between fitting nodes is
made in `packing`. The package may import measurement, capacity, packing and model.
"""
