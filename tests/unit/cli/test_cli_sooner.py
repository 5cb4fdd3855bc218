"""kubectl gpujob why --sooner: each line is true when applied."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, SharingMode, SpotPolicy
from gpujob_api.quantities import GIB, Memory, format_memory
from gpujob_api.report import Timing
from gpujob_operator.cycle import cycle_to_text
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.simulation.run import Limits, simulate
from kubectl_gpujob import sooner
from kubectl_gpujob.errors import UsageError, UserError
from kubectl_gpujob.observations import Observation
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pods,
    make_snapshot,
    measured,
    reserve,
    running,
    with_status,
)
from tests.harness.cli_jobs import MemoryCluster, Ran, run_command

NOW = after(10)


def busy(memory_bytes: int, *, exclusive: bool = False) -> GPUJob:
    """Runs for 5,000 more seconds on GPU-0, which has 24 GiB."""
    known = replace(
        measured(memory_bytes, step=500), current=Timing(1.0, memory_bytes), steps_total=5500
    )
    mode = SharingMode.EXCLUSIVE if exclusive else SharingMode.AUTO
    held = reserve(memory_bytes, exclusive=exclusive)
    job = running(make_job("busy", sharing=mode), held=held, measurement=known)
    return with_status(job, observed_at=NOW)


# A small GPU is free.
SMALL = (make_gpu("GPU-0", total=80 * GIB), make_gpu("GPU-1", total=24 * GIB, index=1))


def around(tenant: GPUJob, *jobs: GPUJob, **fields: Any) -> Snapshot:
    return make_snapshot(tenant, *jobs, pods=make_pods(tenant), **fields)


def observed(snapshot: Snapshot) -> Observation:
    return Observation(snapshot, NOW, "a test")


def waits(gib: int | None = 20, **fields: Any) -> GPUJob:
    memory = {} if gib is None else {"memory_bytes": gib * GIB}
    return make_job("new", created=5, **memory, **fields)


def test_less_memory_starts_at_once() -> None:
    found = sooner.found(observed(around(busy(8 * GIB), waits(40), gpus=SMALL)), "team/new")
    assert found.starts_seconds is not None
    assert found.starts_seconds > 4000
    words = [change.words for change, after in found.better if after < 60]
    assert words == [f"spec.gpu.memory {format_memory(size * GIB)}" for size in (24, 20)]
    assert sooner.rows(found)[0][1].endswith("at once")


def test_each_line_is_true_when_applied() -> None:
    snapshot = around(busy(8 * GIB), waits(40), gpus=SMALL)
    found = sooner.found(observed(snapshot), "team/new")
    assert found.better
    for change, after_it in found.better:
        jobs = tuple(
            replace(job, spec=change.spec) if job.metadata.name == "new" else job
            for job in snapshot.jobs
        )
        story = simulate(replace(snapshot, jobs=jobs), NOW, Limits()).jobs["uid-new"]
        assert story.starts_seconds == after_it


def test_what_does_not_help_is_not_offered() -> None:
    """The job that runs needs the GPU alone."""
    found = sooner.found(observed(around(busy(8 * GIB, exclusive=True), waits(20))), "team/new")
    assert found.tried
    assert found.better == []
    assert sooner.rows(found)[0][1].startswith("no change helps; tried: spec.gpu.memory")


def test_another_spot_policy_is_tried() -> None:
    """The free node is a spot node, which the job does not take."""
    spot = make_node("n1", spot=True)
    nodes = (make_node("n0"), spot)
    gpu_nodes = (make_gpu_node("n0", make_gpu("GPU-0")), make_gpu_node("n1", make_gpu("GPU-1")))
    job = make_job("new", created=5, sharing=SharingMode.EXCLUSIVE, spot=SpotPolicy.NEVER)
    snapshot = around(busy(20 * GIB), job, nodes=nodes, gpu_nodes=gpu_nodes)
    found = sooner.found(observed(snapshot), "team/new")
    assert sooner.rows(found) == [("Sooner", "spec.spot.policy Prefer: at once")]


def test_a_job_without_a_hint_takes_any_gpu() -> None:
    found = sooner.found(observed(around(busy(8 * GIB), waits(None))), "team/new")
    assert found.tried == ()
    assert sooner.rows(found) == [("Sooner", "no change to try")]


def test_the_room_beside_other_jobs_is_tried_too() -> None:
    changes = sooner.changes_of(waits(80), around(busy(8 * GIB), gpus=SMALL))
    sizes = [change.spec.gpu.memory for change in changes]
    assert sizes == [Memory(size * GIB) for size in (72, 40, 24)]


def test_a_job_that_starts_at_once_has_nothing_to_change() -> None:
    found = sooner.found(observed(make_snapshot(waits(4))), "team/new")
    assert sooner.rows(found) == [("Sooner", "nothing to change")]


@pytest.mark.parametrize("name", ["busy", "missing"])
def test_other_jobs_are_refused(name: str) -> None:
    with pytest.raises(UserError):
        sooner.found(observed(around(busy(8 * GIB), waits())), f"team/{name}")


def invoke(*arguments: str) -> Ran:
    return run_command(MemoryCluster(), "why", *arguments)


def test_from_a_dump_as_text_and_as_json(tmp_path: Path) -> None:
    path = tmp_path / "cycle.json"
    path.write_text(cycle_to_text(around(busy(8 * GIB), waits(40), gpus=SMALL), NOW, None))
    lines = invoke("new", "--sooner", "--from", str(path)).stdout.splitlines()
    assert lines[0].startswith("team/new starts in about 1h")
    assert lines[1].split()[0] == "Sooner"
    found = json.loads(invoke("new", "--sooner", "--from", str(path), "-o", "json").stdout)
    assert found["sooner"][0]["change"].startswith("spec.gpu.memory")
    assert found["startsSeconds"] > 4000


def test_places_and_sooner_exclude_each_other() -> None:
    assert isinstance(invoke("new", "--sooner", "--places").exception, UsageError)
