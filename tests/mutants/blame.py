"""Mutants of who is to blame for the end of an attempt."""

from tests.mutants.decisions import of_decide

BLAME = (
    of_decide(
        "a job is to blame for what others took of its memory",
        "lifecycle/ending.py",
        "outcome = without_others_faults(job, judged, pods, inputs.sites, access)",
        "outcome = judged",
        "lifecycle/test_out_of_memory.py",
    ),
    of_decide(
        "what a job's own pod still shows is its excuse",
        "lifecycle/out_of_memory.py",
        "left_bytes = gpu.free_bytes + gpu.terminating_bytes",
        "left_bytes = gpu.free_bytes",
        "lifecycle/test_out_of_memory.py",
    ),
    of_decide(
        "a job beyond its own blames others",
        "lifecycle/out_of_memory.py",
        "return known_bytes <= held.memory_bytes + CONTEXT_BYTES",
        "return True",
        "lifecycle/test_out_of_memory.py",
    ),
    of_decide(
        "kube-scheduler's own errors are waited for like silence",
        "lifecycle/start_refusals.py",
        '    "SchedulerError": SCHEDULER_ERROR_SECONDS,\n',
        "",
        "lifecycle/test_start_refusals.py",
    ),
    of_decide(
        "a pod that nobody schedules is the job's error",
        "lifecycle/start_refusals.py",
        "        if pod.node is None and not _schedules_itself(job):\n            said",
        "        if pod.node is None and pod.reason:\n            said",
        "lifecycle/test_start_refusals.py",
    ),
    of_decide(
        "a wrong scheduler in the template is nobody's error",
        "lifecycle/start_refusals.py",
        "pod.node is None and not _schedules_itself(job)",
        "pod.node is None",
        "lifecycle/test_start_refusals.py",
    ),
    of_decide(
        "who ran out of memory that others took comes back beside others",
        "measurement/reservation.py",
        "job.status.counters.out_of_memory > 0 or job.status.out_of_memory_step is not None",
        "job.status.counters.out_of_memory > 0",
        "lifecycle/test_out_of_memory.py",
    ),
)
