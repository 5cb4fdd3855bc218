"""Answers what would happen if: runs the planner on an edited snapshot in virtual time. Pure.

    edits -> simulated_cluster <-> run (plan) -> timeline -> comparison

Nothing is measured in a simulation, and no attempt fails. Running jobs go on at their measured
pace. Stopped jobs use their whole grace period. A job with a whole GPU keeps the whole GPU. An end
that the planner cannot estimate does not happen: that of a job without a number of steps and
without a finished run of its workload. The package may import every other package but `explain`.
"""
