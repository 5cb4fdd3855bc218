"""Mutants of who is to blame for the end of an attempt."""

from tests.mutants.decisions import of_decide
from tests.mutants.shell import of_operator

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
        "a long pull that fails is given no second try",
        "lifecycle/start_refusals.py",
        "if pod.reason_since is not None:",
        "if False:",
        "lifecycle/test_start_refusals.py",
    ),
    of_decide(
        "a long pull that fails is the job's error",
        "lifecycle/stops.py",
        "    if refusal is not None:\n        # Its time",
        "    if refusal is not None and refusal.seconds_left <= 0:\n        # Its time",
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
    of_operator(
        "each reason of a kubelet starts the wait anew",
        "observe/start_waits.py",
        "self._since.setdefault(pod.uid, self._clock())",
        "self._since[pod.uid] = self._clock()",
        "test_start_waits.py",
    ),
    of_operator(
        "a wait stays where it was when the clock is set",
        "observe/start_waits.py",
        "            self._since[uid] += by",
        "            pass",
        "test_start_waits.py",
    ),
)
