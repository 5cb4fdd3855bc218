"""Computes when pending jobs start, in a process that never delays a cycle.

    loop's snapshot -> forecaster -> child process (simulation) -> Forecast -> the next snapshot

The plan writes the ranges. Nothing else depends on them.
"""
