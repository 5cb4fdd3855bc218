"""A cycle survives its file: the same snapshot, the same decision (and what differs is shown)."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.codec import FieldError
from gpujob_operator.cycle import (
    CycleDumps,
    cycle_from_text,
    cycle_to_text,
    plan_to_json,
    replay,
    snapshot_from_json,
    snapshot_to_json,
)
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import InvalidJob, Snapshot, Taint
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_job,
    make_node,
    make_pods,
    make_queue,
    make_report,
    make_snapshot,
    received,
    running,
    used,
)

NOW = after(30)


def _rich() -> Snapshot:
    """Something of everything that a snapshot can hold."""
    active = running(make_job("active"))
    return replace(
        make_snapshot(
            active,
            make_job("waiting", memory_bytes=5 * 1024**3),
            pods=make_pods(active, termination=make_report(), termination_text="x", exit_code=0),
            nodes=[make_node(taints=(Taint("a", "NoSchedule", "b"),), not_ready_since=after(3))],
            queues=(make_queue(gpus=3),),
            reports=(received(active, make_report(step=5, checkpoint_step=4)),),
            usage={("uid-active", 1): used(10), ("uid-active", 2): used(20)},
            configuration=Configuration(
                device_access=DeviceAccess.DEVICE_PLUGIN, price_per_gpu_hour={"A10": 1.5}
            ),
        ),
        invalid_jobs=(InvalidJob(make_job("bad").metadata, "spec.workers", "is 0", 0),),
    )


def test_a_snapshot_survives_json() -> None:
    snapshot = _rich()
    text = json.dumps(snapshot_to_json(snapshot))
    assert snapshot_from_json(json.loads(text)) == snapshot


def test_a_replayed_cycle_is_the_same() -> None:
    snapshot = _rich()
    cycle = cycle_from_text(cycle_to_text(snapshot, NOW, plan(snapshot, NOW)))
    assert cycle.now == NOW
    assert cycle.plan["items"], "an empty plan would prove nothing"
    assert replay(cycle, plan) == []


def test_another_decision_is_shown_as_a_difference() -> None:
    snapshot = _rich()
    cycle = cycle_from_text(cycle_to_text(snapshot, NOW, plan(snapshot, NOW)))

    def lazy(_: Snapshot, __: datetime) -> Plan:
        return Plan(next_seconds=99)

    lines = replay(cycle, lazy)
    assert lines[:2] == ["--- decided then", "+++ decided now"]
    assert any("99" in line for line in lines if line.startswith("+"))


def test_every_item_names_its_kind() -> None:
    snapshot = _rich()
    kinds = {item["kind"] for item in plan_to_json(plan(snapshot, NOW))["items"]}
    assert kinds >= {"WriteStatus", "RejectJob"}, kinds


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "cycle"),
        ("[]", "format"),
        ("{}", "format"),
        ('{"format": "gpujob-cycle/1"}', "now"),
        ('{"format": "gpujob-cycle/1", "now": "noon"}', "now"),
        ('{"format": "gpujob-cycle/1", "now": "2026-01-01T00:00:00Z"}', "snapshot"),
        (
            '{"format": "gpujob-cycle/1", "now": "2026-01-01T00:00:00Z",'
            ' "snapshot": {"jobs": [{"metadata": {"name": 3}}]}}',
            "snapshot.jobs[0].metadata.name",
        ),
    ],
)
def test_a_broken_file_names_the_field(text: str, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        cycle_from_text(text)
    assert caught.value.field == field


def test_the_dump_folder_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    dumps = CycleDumps(tmp_path / "new", kept=3)
    paths = [dumps.write(Snapshot(), after(number), Plan()) for number in range(6)]
    assert sorted((tmp_path / "new").iterdir()) == paths[-3:]


def test_a_failed_decision_is_dumped_without_a_plan(tmp_path: Path) -> None:
    path = CycleDumps(tmp_path).write(_rich(), NOW, None)
    data: dict[str, Any] = json.loads(path.read_text())
    assert data["plan"] is None
    assert cycle_from_text(path.read_text()).snapshot == _rich()
