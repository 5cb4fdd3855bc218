"""Decides when a job that does not fit could start, and which jobs may run there until then.

The package may import lifecycle, placement, queue and the packages below them. It and preemption do
not import each other.
"""
