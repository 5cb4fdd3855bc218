"""Which claim keeps a job's checkpoints where the administrator has a template for claims."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.codec import FieldError, decode, encode
from gpujob_api.gpujob import Checkpoint
from gpujob_operator.decide.model.checkpoint_claim import (
    AccessMode,
    ClaimSize,
    ClaimTemplate,
    checkpoint_claim,
    gets_default_claim,
)
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.pod_template import claims
from gpujob_operator.decide.model.protection import Unprotected, why_unprotected
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_snapshot,
    make_volume,
    statuses,
)

ONE_NODE = ClaimTemplate(ClaimSize(1024**3))
MANY_NODES = ClaimTemplate(ClaimSize(1024**3), "nfs", (AccessMode.READ_WRITE_MANY,))


def test_without_a_template_a_job_has_its_own_claim_or_none() -> None:
    assert checkpoint_claim(make_job(claim="mine"), None) == "mine"
    assert checkpoint_claim(make_job(claim=None), None) is None


def test_a_job_that_names_no_place_gets_a_claim_of_its_name() -> None:
    assert checkpoint_claim(make_job("train", claim=None), ONE_NODE) == "train-checkpoints"
    assert gets_default_claim(make_job(claim=None, gpus_per_worker=8), ONE_NODE)


def test_a_job_that_names_a_place_keeps_it() -> None:
    assert checkpoint_claim(make_job(claim="mine"), ONE_NODE) == "mine"
    job = make_job(claim=None)
    own = replace(job, spec=replace(job.spec, checkpoint=Checkpoint(path="/data/last.ckpt")))
    assert checkpoint_claim(own, MANY_NODES) is None
    assert claims(own, MANY_NODES) == ()
    below = replace(job, spec=replace(job.spec, checkpoint=Checkpoint(path="runs/last.ckpt")))
    assert checkpoint_claim(below, ONE_NODE) == "job-checkpoints", "in the folder for checkpoints"


def test_workers_on_several_nodes_get_a_claim_that_all_of_them_can_mount() -> None:
    gang = make_job("gang", claim=None, workers=2)
    assert checkpoint_claim(gang, ONE_NODE) is None
    assert checkpoint_claim(gang, MANY_NODES) == "gang-checkpoints"
    both = ClaimTemplate(
        ClaimSize(1024**3), None, (AccessMode.READ_WRITE_ONCE, AccessMode.READ_WRITE_MANY)
    )
    assert checkpoint_claim(gang, both) == "gang-checkpoints"


def test_a_job_goes_where_the_volume_of_its_default_claim_is() -> None:
    """As with a claim that it names: otherwise kube-scheduler would have to refuse its pods."""

    def node_of(template: ClaimTemplate | None) -> str:
        found = make_snapshot(
            make_job("train", claim=None),
            nodes=[make_node(name, labels={"zone": name}) for name in ("n0", "n1")],
            gpu_nodes=[
                make_gpu_node(name, make_gpu(f"GPU-{name}"), at=0.0) for name in ("n0", "n1")
            ],
            volumes=(make_volume("n1", claim="train-checkpoints"),),
            configuration=Configuration(checkpoint_claim_template=template),
        )
        placement = statuses(plan(found, T0).items)["train"].placement
        assert placement is not None
        return placement.workers[0].node

    assert node_of(None) == "n0"
    assert node_of(ONE_NODE) == "n1"


def test_a_job_with_a_default_claim_is_protected() -> None:
    job = make_job("train", claim=None)
    assert why_unprotected(job, Configuration()) is Unprotected.NO_DURABLE_PLACE
    with_template = Configuration(checkpoint_claim_template=ONE_NODE)
    assert why_unprotected(job, with_template) is None
    gang = make_job("gang", claim=None, workers=2)
    assert why_unprotected(gang, with_template) is Unprotected.NO_DURABLE_PLACE


def test_a_template_is_read_and_written_as_in_the_configuration_file() -> None:
    text = {"size": "20Gi", "storageClassName": "fast", "accessModes": ["ReadWriteMany"]}
    assert encode(decode(ClaimTemplate, text, "t")) == text
    assert decode(ClaimTemplate, {"size": "1Gi"}, "t") == ONE_NODE


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({}, "t.size"),
        ({"size": "much"}, "t.size"),
        ({"size": "0Gi"}, "t.size"),
        ({"size": "20Pi"}, "t.size"),
        ({"size": "1Gi", "storageClassName": "Fast Disks"}, "t.storageClassName"),
        ({"size": "1Gi", "storageClassName": ""}, "t.storageClassName"),
        ({"size": "1Gi", "accessModes": []}, "t.accessModes"),
        ({"size": "1Gi", "accessModes": ["ReadOnlyMany"]}, "t.accessModes[0]"),
        ({"size": "1Gi", "accessModes": ["ReadWriteOnce"] * 2}, "t.accessModes"),
    ],
    ids=str,
)
def test_nonsense_is_refused_by_field(template: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode(ClaimTemplate, template, "t")
    assert caught.value.field == field
