"""Decides when a job that does not fit could start, and which jobs may run there until then.

The package may import lifecycle, placement, queue and what is below them. Preemption stands beside
it: neither imports the other.
"""
