"""Mutants of the decisions."""

from tests.mutants.mutant import OPERATOR, Mutant

_DECIDE = f"{OPERATOR}/decide"
_UNIT = "tests/unit/decide"


def _of(name: str, path: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, f"{_DECIDE}/{path}", old, new, tuple(f"{_UNIT}/{one}" for one in tests))


DECISIONS = (
    _of(
        "the driver's memory is free",
        "capacity/cluster.py",
        "free_bytes = self.total_bytes - self.driver_bytes - self.external_bytes",
        "free_bytes = self.total_bytes - self.external_bytes",
        "capacity",
    ),
    _of(
        "memory of unmanaged processes is free",
        "capacity/cluster.py",
        "free_bytes = self.total_bytes - self.driver_bytes - self.external_bytes",
        "free_bytes = self.total_bytes - self.driver_bytes",
        "capacity",
    ),
    _of(
        "use above a reservation is free",
        "capacity/cluster.py",
        "free_bytes -= tenant.memory_bytes + tenant.excess_bytes",
        "free_bytes -= tenant.memory_bytes",
        "capacity",
    ),
    _of(
        "a deleted job holds its GPUs for ever",
        "capacity/cluster.py",
        "and not job.finished and not leaves",
        "and not job.finished",
        "lifecycle/test_deleted_jobs.py",
    ),
    _of(
        "old readings are as good as new ones",
        "capacity/availability.py",
        "if age <= timedelta(seconds=limit_seconds):",
        "if age <= timedelta(days=limit_seconds):",
        "capacity",
    ),
    _of(
        "a node that was never measured is open",
        "capacity/availability.py",
        "return NodeClosed(ClosedReason.UNMEASURED, ClosedReason.UNMEASURED.value)",
        "return None",
        "capacity",
    ),
    _of(
        "a node that is being reclaimed is open",
        "capacity/availability.py",
        "return ClosedReason.RECLAIMED",
        "return None",
        "capacity",
    ),
    _of(
        "one job's errors close a GPU to all",
        "capacity/suspects.py",
        "if len(uids) >= SUSPECT_JOBS_MIN",
        "if uids",
        "capacity/test_suspects.py",
    ),
    _of(
        "errors follow their namespace and are believed",
        "capacity/suspects.py",
        "if len(gpus[fault.namespace]) == 1]",
        "if gpus[fault.namespace]]",
        "capacity/test_suspects.py",
    ),
    _of(
        "a stale reading stops a running job",
        "lifecycle/faults.py",
        "            continue  # Stale readings never stop a job (I14).",
        '            return StopReason(GPU_UNHEALTHY, "stale", deadline)',
        "lifecycle/test_faults.py",
    ),
    _of(
        "the smallest tenant of an overfull GPU leaves",
        "lifecycle/faults.py",
        "moved = max(gpu.tenants,",
        "moved = min(gpu.tenants,",
        "lifecycle/test_faults.py",
    ),
    _of(
        "a gang of which one worker is left goes on",
        "lifecycle/stops.py",
        "present < job.spec.workers",
        "present < 1",
        "lifecycle",
    ),
    _of(
        "only exit code 1 ends a gang",
        "lifecycle/stops.py",
        "if pod.ended and pod.exit_code != 0]",
        "if pod.ended and pod.exit_code == 1]",
        "lifecycle",
    ),
    _of(
        "half of a gang that is done is a success",
        "lifecycle/outcome.py",
        "if complete and not early and all(",
        "if not early and all(",
        "lifecycle/test_outcome.py",
    ),
    _of(
        "the limit of retries is one more",
        "lifecycle/outcome.py",
        "    if retries > limit:",
        "    if retries > limit + 1:",
        "lifecycle/test_outcome.py",
    ),
    _of(
        "a program may take every GPU down",
        "lifecycle/outcome.py",
        "if counters.unhealthy_gpus >= UNHEALTHY_GPUS_MAX:",
        "if counters.unhealthy_gpus >= 1000 * UNHEALTHY_GPUS_MAX:",
        "lifecycle/test_outcome.py",
    ),
    _of(
        "exit 0 after a stop is always the end",
        "lifecycle/outcome.py",
        "        return words.step < words.steps_total",
        "        return False",
        "lifecycle/test_outcome.py",
    ),
    _of(
        "a refused pod is retried at once",
        "lifecycle/start_refusals.py",
        "for one in sorted(inputs.refused_pods, key=lambda one: one.rank):",
        "for one in ():",
        "lifecycle/test_start_refusals.py",
    ),
    _of(
        "the durable step goes back",
        "measurement/progress.py",
        "checkpoint = max(checkpoint, status.checkpoint, key=lambda c: c.step)",
        "checkpoint = min(checkpoint, status.checkpoint, key=lambda c: c.step)",
        "measurement/test_progress.py",
    ),
    _of(
        "a report of an earlier attempt counts",
        "measurement/progress.py",
        "if received is None or received.report.attempt != status.attempt:",
        "if received is None:",
        "measurement/test_progress.py",
    ),
    _of(
        "silence before the operator listened counts as hanging",
        "measurement/progress.py",
        "        since = max(since, listening_since)",
        "        since = min(since, listening_since)",
        "measurement/test_progress.py",
        "lifecycle",
    ),
    _of(
        "one reading is a measurement",
        "measurement/reservation.py",
        "    if usage.samples < configuration.measurement_samples_min:\n        return None",
        "    if usage.samples < 1:\n        return None",
        "measurement",
    ),
    _of(
        "an exclusive job shares once it is measured",
        "measurement/reservation.py",
        "return picked or job.spec.sharing.mode is SharingMode.EXCLUSIVE",
        "return picked",
        "measurement",
    ),
    _of(
        "a pod of any namespace is a worker",
        "model/workers.py",
        "    if job_name_of(pod) != (job.metadata.namespace, job.metadata.name):\n",
        "    if (job_name_of(pod) or ('', ''))[1] != job.metadata.name:\n",
        "model/test_workers.py",
    ),
    _of(
        "a pod without the owner is a worker",
        "model/workers.py",
        "    if pod.job_uid == job.metadata.uid:\n        return True\n    place",
        "    return True\n    place",
        "model/test_workers.py",
    ),
    _of(
        "a pod that is gone is created again",
        "model/workers.py",
        "if w.pod_uid is not None and w.rank not in present]",
        "if False and w.rank not in present]",
        "model/test_workers.py",
        "lifecycle",
    ),
    _of(
        "an overdue job is not overdue",
        "queue/order.py",
        "return self.overdue if now_seconds >= self.due_seconds else self.on_time",
        "return self.on_time",
        "queue",
    ),
    _of(
        "priority counts the other way",
        "queue/order.py",
        "priority, arrived, uid = -entry.priority,",
        "priority, arrived, uid = entry.priority,",
        "queue",
    ),
    _of(
        "a job is preempted for ever",
        "preemption/victims.py",
        "job.status.counters.preemptions < configuration.preemptions_max",
        "job.status.counters.preemptions >= 0",
        "preemption",
    ),
)
