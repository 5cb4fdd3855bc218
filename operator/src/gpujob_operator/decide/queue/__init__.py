"""Whose turn it is: order, quotas and the heads of the queues."""
