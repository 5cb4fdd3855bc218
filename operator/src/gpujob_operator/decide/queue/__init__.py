"""Decides which pending job is next: order within a queue, quotas, and fair sharing between queues.

The package may import measurement, capacity, packing and model. It reads no node labels.
"""
