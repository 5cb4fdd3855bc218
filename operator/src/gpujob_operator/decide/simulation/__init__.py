"""What if: `plan` itself on a picture that is changed, carried out in virtual time. Pure.

    edits -> simulated_cluster <-> run (plan) -> timeline -> comparison

Nothing is measured there and nobody fails: running jobs go on at their measured pace, jobs that are
stopped use their whole grace, and who holds a whole card keeps it. What `plan` does not estimate
(the end of a job that says no number of steps and has no like that ended) does not happen.
"""
