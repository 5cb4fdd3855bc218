"""Explains why a job is placed where it is and not elsewhere, for `kubectl gpujob`.

The package decides nothing. It runs `planner` and shows what the planner compared. It may import
every other package of the decisions except `simulation`.
"""
