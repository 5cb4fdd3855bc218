"""Simulates: runs the planner on an edited snapshot in virtual time. Pure.

    edits -> simulated_cluster <-> run (plan) -> timeline -> comparison
    run_lengths, later_jobs -> run, in many draws -> start_ranges

A simulation measures nothing, and no attempt fails. Running jobs continue at their measured pace.
Stopped jobs use their whole grace. A job with a whole GPU keeps the whole GPU. A run without a
number of steps and without a finished run of its workload does not end. In `start_ranges`, run
times and later jobs are drawn instead. The package may import every other package except `explain`.
"""
