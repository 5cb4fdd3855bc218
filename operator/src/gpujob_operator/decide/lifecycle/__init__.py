"""Decides the next step of one job: its phase, its pods, its retries, and the status to write.

The package looks at one job and at what concerns it, never at other jobs' specs. It may import
measurement, capacity, packing and model. Placement and queue stand beside it and are not imported.
"""
