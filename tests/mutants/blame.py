"""Mutants of who is to blame for the end of an attempt."""

from tests.mutants.decisions import of_decide

BLAME = (
    of_decide(
        "a job is to blame for what others took of its memory",
        "lifecycle/ending.py",
        "outcome = without_others_faults(job, judged, inputs.sites)",
        "outcome = judged",
        "lifecycle/test_out_of_memory.py",
    ),
    of_decide(
        "what a job's own pod still shows is its excuse",
        "lifecycle/out_of_memory.py",
        "gpu.free_bytes + gpu.terminating_bytes < 0",
        "gpu.free_bytes < 0",
        "lifecycle/test_out_of_memory.py",
    ),
    of_decide(
        "a job beyond its own blames others",
        "lifecycle/out_of_memory.py",
        "measured.memory_bytes <= held.memory_bytes + CONTEXT_BYTES",
        "True",
        "lifecycle/test_out_of_memory.py",
    ),
    of_decide(
        "kube-scheduler's own errors are waited for like silence",
        "lifecycle/start_refusals.py",
        '{UNSCHEDULABLE: UNSCHEDULABLE_SECONDS, "SchedulerError": 30.0}',
        "{UNSCHEDULABLE: UNSCHEDULABLE_SECONDS}",
        "lifecycle/test_start_refusals.py",
    ),
    of_decide(
        "a pod that nobody schedules is the job's error",
        "lifecycle/start_refusals.py",
        "        if pod.node is None:\n            said",
        "        if pod.node is None and pod.reason:\n            said",
        "lifecycle/test_start_refusals.py",
    ),
)
