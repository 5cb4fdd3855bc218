"""kubectl gpujob what-if: the outcome with a change next to the one without it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode, SpotPolicy
from gpujob_api.quantities import GIB
from gpujob_operator.cycle import cycle_to_text
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from gpujob_operator.read.snapshot import Objects
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.verbs.what_if import changed_jobs, with_fields
from tests.harness.builders import (
    after,
    make_job,
    make_pods,
    make_snapshot,
    measured,
    running,
    with_status,
)
from tests.harness.cli_jobs import Clock, MemoryCluster, Ran, run_command
from tests.harness.manifests import gpu_node_manifest, job_manifest, node_manifest

NOW = after(10)


def world(*more: GPUJob) -> Snapshot:
    """One GPU, on which `busy` runs for another 100 s, and jobs that wait for it."""
    known = replace(measured(4 * GIB, step=500), steps_total=1500)
    busy = running(make_job("busy", sharing=SharingMode.EXCLUSIVE), measurement=known)
    busy = with_status(busy, observed_at=NOW)
    snapshot = make_snapshot(busy, pods=make_pods(busy))
    return replace(snapshot, jobs=(*snapshot.jobs, *more))


def waiting(name: str = "next", **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, created=5, **fields)


def dump(folder: Path, snapshot: Snapshot) -> Path:
    path = folder / "cycle.json"
    path.write_text(cycle_to_text(snapshot, NOW, plan(snapshot, NOW)))
    return path


def ask(source: Path, *arguments: str, verb: str = "what-if") -> Ran:
    given = (verb, *arguments, "--from", str(source), "-n", "team")
    return run_command(MemoryCluster(), *given, clock=Clock(NOW), width=4096)


def rows(ran: Ran) -> dict[str, str]:
    assert ran.exit_code == 0, ran.output
    lines = [line.split(None, 1) for line in ran.stdout.splitlines() if line.startswith("  ")]
    return {label: text for label, text in lines}


def test_another_node_is_answered_with_both_outcomes(tmp_path: Path) -> None:
    source = dump(tmp_path, world(waiting()))
    ran = ask(source, "next", "--add-nodes", "n0=1")
    lines = ran.stdout.splitlines()
    assert lines[0].startswith(f"Simulated from {source} of 2026-01-01 00:00:10 UTC: ")
    assert lines[0].endswith("Nothing was written.")
    assert lines[1] == "team/next"
    assert "Placed in 1m 41s on n0 (GPU-0)" in rows(ran)["Before"]
    assert rows(ran)["After"].startswith("Placed at once on n0-what-if-0")
    assert lines[-1] == "No other job starts at another time or is interrupted differently."


def test_a_claim_that_does_not_exist_is_named() -> None:
    objects = Objects(
        jobs=[job_manifest(waiting())], nodes=[node_manifest()],
        gpu_nodes=[gpu_node_manifest(observed_at="2026-01-01T00:00:05Z")],
    )  # fmt: skip
    for there, warned in (([], True), (["checkpoints"], False)):
        cluster = MemoryCluster(
            namespace="team", objects_held=objects, now=NOW, configurations={}, claim_names=there
        )
        ran = run_command(cluster, "what-if", "next", "--priority", "5", clock=Clock(NOW))
        assert ran.exit_code == 0, ran.output
        said = 'warning: persistentvolumeclaim "checkpoints" does not exist in the namespace team'
        assert ran.stderr.startswith(said) is warned


def test_a_priority_names_the_jobs_that_it_stops(tmp_path: Path) -> None:
    ran = ask(dump(tmp_path, world(waiting())), "next", "--priority", "5")
    found = rows(ran)
    assert found["Change"] == "spec.priority: 0 -> 5"
    assert "Preempting: waiting for team/busy to stop" in found["After"]
    others = ran.stdout[ran.stdout.index("Others") :]
    assert "team/busy   is interrupted at once (Preempted: stopped for team/next" in others


def test_less_memory_makes_an_impossible_job_possible(tmp_path: Path) -> None:
    source = dump(tmp_path, world(waiting(memory_bytes=100 * GIB)))
    found = rows(ask(source, "next", "--memory", "10Gi"))
    assert found["Change"] == "spec.gpu.memory: 100Gi -> 10Gi"
    assert "Not placed" in found["Before"]
    assert "Placed in 1m 41s on n0" in found["After"]


def test_a_change_without_effect_is_the_same(tmp_path: Path) -> None:
    source = dump(tmp_path, world(waiting()))
    ran = ask(source, "next", "busy", "--max-slowdown", "15")
    assert ran.stdout.count("After    the same") == 2
    assert "spec.sharing.maxSlowdownPercent: 10 -> 15" in ran.stdout


def test_a_node_that_goes_is_answered_without_a_job(tmp_path: Path) -> None:
    source = dump(tmp_path, world(waiting()))
    ran = ask(source, "--without-node", "n0")
    assert "team/next   does not start within" in ran.stdout
    assert "team/busy   is interrupted at once" in ran.stdout
    quiet = ask(dump(tmp_path, make_snapshot()), "--add-nodes", "n0=1")
    assert quiet.stdout.splitlines()[1:] == [
        "No job starts at another time or is interrupted differently."
    ]


def test_spot_policies_are_named_as_in_a_spec_or_in_lower_case(tmp_path: Path) -> None:
    source = dump(tmp_path, world(waiting()))
    for text in ("Never", "never"):
        assert rows(ask(source, "next", "--spot", text))["Change"].endswith("Prefer -> Never")
    assert ask(source, "next", "--spot", "sometimes").exit_code == 2


def test_json_has_a_version_the_changes_and_both_outcomes(tmp_path: Path) -> None:
    source = dump(tmp_path, world(waiting()))
    found = json.loads(ask(source, "next", "--priority", "5", "-o", "json").stdout)
    assert (found["apiVersion"], found["kind"]) == ("cli.gpujob.dev/v1", "WhatIf")
    assert found["changes"] == {"spec.priority": 5}
    assert (found["source"], found["now"]) == (str(source), "2026-01-01T00:00:10Z")
    [one] = found["jobs"]
    assert one["without"]["startsSeconds"] > one["with"]["startsSeconds"]
    assert [other["name"] for other in found["others"]] == ["busy"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "no change is given"),
        (("next",), 2, "no change is given"),
        (("--memory", "10Gi"), 2, "--memory needs a JOB"),
        (("nix", "--memory", "10Gi"), 1, "not found: gpujob nix in namespace team"),
        (("nix", "--add-nodes", "n0=1"), 1, "not found: gpujob nix in namespace team"),
        (("done", "--priority", "1"), 1, "gpujob done has finished"),
        (("next", "--memory", "10"), 1, "--memory: must be at least 1Mi; got 10 bytes"),
        (("next", "--memory", "10GB"), 1, "--memory: "),
        (("next", "--max-slowdown", "101"), 1, "--max-slowdown: "),
        (("next", "--queue", "A B"), 1, "--queue: "),
        (("next", "--without-node", "n7"), 1, "--without-node: no node n7"),
        (("next", "--quota", "visoin.gpus=1"), 1, "--quota visoin.gpus=1: GPUQueue 'visoin' does"),
    ],
)
def test_what_cannot_be_asked_names_the_option(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = with_status(make_job("done"), phase=JobPhase.SUCCEEDED, finished_at=NOW)
    ran = ask(dump(tmp_path, world(waiting(), done)), *arguments)
    assert ran.exit_code == code
    assert str(ran.exception).startswith(said)


def test_a_job_is_named_once(tmp_path: Path) -> None:
    job = waiting()
    assert len(changed_jobs([job], ["next", "next"], "team", {"priority": 1})) == 1
    with pytest.raises(UserError, match="not found"):
        changed_jobs([job], ["next"], "other", {"priority": 1})


EDITS = st.fixed_dictionaries(
    {},
    optional={
        "memory": st.sampled_from(["1Gi", "20Gi"]),
        "priority": st.integers(-5, 5),
        "max_slowdown": st.integers(0, 100),
        "spot": st.sampled_from([policy.value for policy in SpotPolicy]),
        "queue": st.sampled_from(["default", "vision"]),
    },
)


@given(EDITS)
def test_an_edit_sets_its_fields_and_no_other(edits: dict[str, Any]) -> None:
    job = waiting()
    edited = with_fields(job, edits)
    assert (edited.metadata, edited.status) == (job.metadata, job.status)
    back = {
        "memory": None,
        "priority": 0,
        "max_slowdown": 10,
        "spot": "Prefer",
        "queue": "default",
    }
    assert with_fields(edited, {name: back[name] for name in edits}) == job


@settings(max_examples=15)
@given(st.integers(0, 2), st.booleans())
def test_it_answers_as_simulate_does(
    tmp_path_factory: pytest.TempPathFactory, count: int, two: bool
) -> None:
    """The outcome with a change of the cluster is the one that `simulate` shows."""
    snapshot = world(waiting(), *([waiting("later", priority=1)] if two else []))
    source = dump(tmp_path_factory.mktemp("dump"), snapshot)
    changes = [f"--add-nodes=n0={count}"] if count else ["--quota=default.gpus=1"]
    one = json.loads(ask(source, "next", *changes, "-o", "json").stdout)
    other = json.loads(ask(source, "next", *changes, "-o", "json", verb="simulate").stdout)
    [with_change] = [job["with"] for job in one["jobs"]]
    [simulated] = other["jobs"]
    assert with_change == {name: simulated[name] for name in with_change}
    assert one["others"] == other["others"]
