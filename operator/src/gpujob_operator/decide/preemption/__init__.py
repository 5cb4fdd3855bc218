"""Decides which running jobs are stopped for another job, and what each stop costs.

The victims are the cheapest set that makes the pending job fit. A job that is slowed too much is
migrated. The package may import lifecycle, placement, queue and the packages below them.
"""
