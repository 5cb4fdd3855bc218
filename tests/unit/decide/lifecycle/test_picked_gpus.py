"""GPUs that the kubelet picks are taken from the agent's reading."""

from gpujob_api.gpujob import GPUJob, GPUJobStatus, ReservationSource
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.snapshot import GPUUsage, SeenGPUs
from gpujob_operator.decide.model.workers import with_seen_gpus
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    CARD_BYTES,
    after,
    make_gpu,
    make_job,
    make_pod,
    make_snapshot,
    reserve,
    running,
    statuses,
    with_status,
)

PICKED = Configuration(device_access=DeviceAccess.DEVICE_PLUGIN)
WHOLE = reserve(CARD_BYTES, ReservationSource.WHOLE_GPU, 100.0)


def _on(name: str, gpu: str) -> GPUJob:
    return running(make_job(name), ("n0", (gpu,)), held=WHOLE)


def _planned(
    configuration: Configuration, seen: dict[str, str], *jobs: GPUJob
) -> dict[str, GPUJobStatus]:
    """`seen`: on which GPU which job's process is."""
    gpus = [
        make_gpu(uuid, index=index, ours=[(f"uid-{name}-1-0", 12 * GIB)] if name else [])
        for index, uuid in enumerate(("GPU-0", "GPU-1"))
        for name in [next((one for one, where in seen.items() if where == uuid), "")]
    ]
    usage = {
        (f"uid-{name}", 1): GPUUsage(12 * GIB, 50.0, 1, seen=(SeenGPUs(0, (uuid,)),))
        for name, uuid in seen.items()
    }
    pods = [make_pod(job) for job in jobs if job.status.placement is not None]
    snapshot = make_snapshot(*jobs, pods=pods, gpus=gpus, usage=usage, configuration=configuration)
    return statuses(plan(snapshot, after(1)).items)


def _gpus(status: GPUJobStatus) -> tuple[str, ...]:
    assert status.placement is not None
    return status.placement.workers[0].gpus


def test_one_job_takes_one_gpu_wherever_the_kubelet_put_it() -> None:
    first = _on("a", "GPU-0")
    known = _planned(PICKED, {"a": "GPU-1"}, first)["a"]
    assert _gpus(known) == ("GPU-1",)
    first = with_status(first, placement=known.placement)
    planned = _planned(PICKED, {"a": "GPU-1"}, first, make_job("b"))
    assert _gpus(planned["b"]) == ("GPU-0",)


def test_nobody_is_stopped_while_two_of_them_change_places() -> None:
    """The reading of one of them comes first."""
    jobs = [_on("a", "GPU-1"), _on("b", "GPU-1")]
    planned = _planned(PICKED, {"a": "GPU-1"}, *jobs)
    assert all(status.stop is None for status in planned.values())


def test_gpus_that_the_operator_chose_stay() -> None:
    """A process that is seen elsewhere then is no reason to believe that the job moved."""
    planned = _planned(Configuration(), {"a": "GPU-1"}, _on("a", "GPU-0"))
    assert all(_gpus(status) == ("GPU-0",) for status in planned.values())


def test_a_worker_that_is_seen_on_part_of_its_gpus_keeps_its_place() -> None:
    """It may not have come to use the others yet."""
    job = running(make_job("a", gpus_per_worker=2), ("n0", ("GPU-0", "GPU-1")), held=WHOLE)
    assert with_seen_gpus(job.status, [SeenGPUs(0, ("GPU-2",))]) is job.status
    same = [SeenGPUs(0, ("GPU-1", "GPU-0"))]
    assert with_seen_gpus(job.status, same) is job.status
    moved = with_seen_gpus(job.status, [SeenGPUs(0, ("GPU-2", "GPU-3"))])
    assert _gpus(moved) == ("GPU-2", "GPU-3")
