"""A job goes where the volumes of its claims are, before kube-scheduler has to refuse its pods."""

from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.pod_template import claims
from gpujob_operator.decide.model.snapshot import BoundVolume, Snapshot
from gpujob_operator.decide.placement.node_filter import node_mismatch
from gpujob_operator.decide.placement.requirements import requirements_of
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.builders import (
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_snapshot,
    make_template,
    make_volume,
    statuses,
)

ZONES = {"n0": "a", "n1": "b", "n2": "c"}
READ_DATA = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}


def snapshot(*jobs: GPUJob, volumes: tuple[BoundVolume, ...] = ()) -> Snapshot:
    """One node with one GPU in each of three zones."""
    return make_snapshot(
        *jobs,
        nodes=[make_node(name, labels={"zone": zone}) for name, zone in ZONES.items()],
        gpu_nodes=[make_gpu_node(name, make_gpu(f"GPU-{name}"), at=0.0) for name in ZONES],
        volumes=volumes,
    )


def node_of(found: Snapshot) -> str | None:
    """Where the plan puts the job."""
    placement = statuses(plan(found, T0).items)["job"].placement
    return None if placement is None else placement.workers[0].node


def reading_data() -> GPUJob:
    return make_job(template=make_template(volumes=[READ_DATA]))


def scheduled(found: Snapshot) -> str:
    status = statuses(plan(found, T0).items)["job"]
    return next(one.message for one in status.conditions if one.type == "Scheduled")


@pytest.mark.parametrize(("zone", "node"), [("a", "n0"), ("b", "n1"), ("c", "n2")])
def test_a_job_goes_to_the_zone_of_its_checkpoints(zone: str, node: str) -> None:
    assert node_of(snapshot(make_job(), volumes=(make_volume(zone),))) == node


def test_every_claim_of_the_template_counts() -> None:
    volumes = (make_volume("b", "c"), make_volume("a", "c", claim="data", name="other"))
    assert node_of(snapshot(reading_data(), volumes=volumes)) == "n2"


def test_a_job_whose_volumes_are_nowhere_together_waits_and_says_why() -> None:
    volumes = (make_volume("b"), make_volume("c", claim="data", name="other"))
    found = snapshot(reading_data(), volumes=volumes)
    assert node_of(found) is None
    words = scheduled(found)
    assert "2 volume of claim checkpoints: nodeAffinity zone In (b) does not match" in words
    assert "1 volume of claim data: nodeAffinity zone In (c) does not match" in words


@pytest.mark.parametrize(
    "volume",
    [make_volume("c", claim="another"), make_volume("c", namespace="other")],
    ids=["of another claim", "of another namespace"],
)
def test_volumes_of_others_do_not_count(volume: BoundVolume) -> None:
    assert node_of(snapshot(make_job(), volumes=(volume,))) == "n0"


def test_a_gang_is_as_a_whole_where_its_volume_is() -> None:
    """One node of the zone has one GPU; the other nodes are of no use."""
    gang = make_job(workers=2)
    assert node_of(snapshot(gang, volumes=(make_volume("b"),))) is None
    placed = statuses(plan(snapshot(gang, volumes=(make_volume("b", "c"),)), T0).items)["job"]
    assert placed.placement is not None
    assert {one.node for one in placed.placement.workers} == {"n1", "n2"}


def test_what_nobody_can_read_of_a_volume_excludes_no_node() -> None:
    odd: list[dict[str, Any]] = [{}, {"nodeSelectorTerms": 3}, {"nodeSelectorTerms": ["x"]}]
    for selector in odd:
        volume = BoundVolume("volume", "team", "checkpoints", selector)
        found = requirements_of(make_job(), None, volumes=(volume,))
        assert node_mismatch(found, make_node()) == ""


def test_claims_are_those_of_the_template_and_of_the_checkpoints_once() -> None:
    again = {"name": "again", "persistentVolumeClaim": {"claimName": "checkpoints"}}
    others = [{"name": "scratch", "emptyDir": {}}, {"name": "none", "persistentVolumeClaim": None}]
    job = make_job(template=make_template(volumes=[READ_DATA, again, *others]))
    assert claims(job) == ("checkpoints", "data")
    assert claims(make_job(claim=None)) == ()
    assert claims(make_job(template=make_template(volumes=["x"]))) == ()


# -- what a cycle remembers


def decided(planner: Planner, found: Snapshot, seconds: float) -> str | None:
    """The node on which the next cycle puts the job, or None. Nothing is written."""
    status = statuses(planner(found, after(seconds)).items).get("job")
    placement = None if status is None else status.placement
    return None if placement is None else placement.workers[0].node


def test_a_volume_that_is_bound_moves_or_goes_is_noticed_by_the_next_cycle() -> None:
    planner, job = Planner(), make_job(gpus_per_worker=1)
    bound = (make_volume("b"),)
    assert decided(planner, snapshot(job, volumes=(make_volume("nowhere"),)), 0) is None
    assert decided(planner, snapshot(job, volumes=bound), 1) == "n1"
    assert decided(planner, snapshot(job, volumes=(make_volume("c"),)), 2) == "n2"
    assert decided(planner, snapshot(job), 3) == "n0"
    assert decided(planner, snapshot(job, volumes=bound), 4) == "n1"


def test_a_jobs_claim_that_changes_is_noticed() -> None:
    planner, volumes = Planner(), (make_volume("b"), make_volume("c", claim="new", name="other"))
    assert decided(planner, snapshot(make_job(), volumes=volumes), 0) == "n1"
    changed = make_job(claim="new", generation=2)
    assert decided(planner, snapshot(changed, volumes=volumes), 1) == "n2"
    assert decided(planner, snapshot(volumes=volumes), 2) is None
