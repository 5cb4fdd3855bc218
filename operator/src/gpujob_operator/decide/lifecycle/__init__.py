"""Decides the next step of one job: its phase, its pods, its retries, and the status to write.

The package reads one job and what concerns it, never the specs of other jobs. It may import
measurement, capacity, packing and model. It does not import placement and queue, which are on the
same level.
"""
