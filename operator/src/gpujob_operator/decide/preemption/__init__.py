"""Decides which running jobs are stopped for another job's sake, and what each stop costs.

The victims are the cheapest set that makes the pending job fit. A job that is slowed too much is
moved. The package may import lifecycle, placement, queue and what is below them.
"""
