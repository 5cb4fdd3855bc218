"""Decides which pending job is next: the order in a queue, quotas, and shares between queues.

The package may import measurement, capacity, packing and model. It knows nothing of nodes' labels.
"""
