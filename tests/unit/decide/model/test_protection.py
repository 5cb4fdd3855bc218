"""Whether an interruption loses a job's run: by its place for checkpoints, and by its worker."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Checkpoint, GPUJob, SpotPolicy
from gpujob_api.report import CheckpointReport, Protection
from gpujob_operator.decide.model.checkpoint_claim import ClaimSize, ClaimTemplate
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.protection import (
    Unprotected,
    durable_checkpoint,
    kept_off_spot,
    unprotected_message,
    why_unprotected,
)
from tests.harness.builders import make_job, make_template, with_status

DEFAULTS = Configuration()
NO_PLACE, NOT_RESUMABLE = Unprotected.NO_DURABLE_PLACE, Unprotected.NOT_RESUMABLE
CLAIM = {"persistentVolumeClaim": {"claimName": "data"}}


def job(
    claim: str | None = None,
    path: str | None = None,
    mounts: dict[str, str] | None = None,
    **volumes: dict[str, Any],
) -> GPUJob:
    """`mounts`: volumes by path."""
    template = make_template(volumes=[{"name": name, **one} for name, one in volumes.items()])
    template["spec"]["containers"][0]["volumeMounts"] = [
        {"name": name, "mountPath": at} for at, name in (mounts or {}).items()
    ]
    made = make_job(template=template)
    return replace(made, spec=replace(made.spec, checkpoint=Checkpoint(claim, path=path)))


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (job("ckpt"), None),
        (job(), NO_PLACE),
        # What another volume holds is not where the worker saves.
        (job(mounts={"/data": "data"}, data=CLAIM), NO_PLACE),
        # The script's own checkpoints, below the worker's folder.
        (job(path="saved/*.pt"), NO_PLACE),
        (job("ckpt", path="saved/*.pt"), None),
        (job(path="/data/saved/*.pt", mounts={"/data": "data"}, data=CLAIM), None),
        (job(path="/data/saved/*.pt", mounts={"/data/": "data"}, data=CLAIM), None),
        (job(path="/data/x.pt", mounts={"/data": "data"}, data={"nfs": {"server": "s"}}), None),
        (job(path="/data/x.pt", mounts={"/data": "data"}, data={"emptyDir": {}}), NO_PLACE),
        (job(path="/data/x.pt", mounts={"/data": "data"}, data={"hostPath": {}}), NO_PLACE),
        (job(path="/database/x.pt", mounts={"/data": "data"}, data=CLAIM), NO_PLACE),
        (job(path="/tmp/x.pt"), NO_PLACE),
        # The innermost volume holds it.
        (
            job(
                path="/data/tmp/x.pt",
                mounts={"/data": "data", "/data/tmp": "tmp"},
                data=CLAIM,
                tmp={"emptyDir": {}},
            ),
            NO_PLACE,
        ),
        # Its claim does not hold what lies elsewhere.
        (
            job("ckpt", path="/tmp/x.pt", mounts={"/tmp": "tmp"}, tmp={"emptyDir": {}}),
            NO_PLACE,
        ),
        # A volume that is not there: the API server refuses the pod.
        (job("ckpt", path="/data/x.pt", mounts={"/data": "gone"}), None),
    ],
)
def test_a_place_that_outlives_the_pod(one: GPUJob, why: Unprotected | None) -> None:
    assert why_unprotected(one, DEFAULTS) is why


def test_a_claim_that_the_operator_makes_is_a_place() -> None:
    template = ClaimTemplate(ClaimSize(1024**3))
    making = replace(DEFAULTS, checkpoint_claim_template=template)
    assert why_unprotected(job(), making) is None
    assert why_unprotected(replace(job(), spec=replace(job().spec, workers=2)), making) is NO_PLACE


@pytest.mark.parametrize(
    ("protection", "why"),
    [
        (None, None),
        (Protection.EXACT, None),
        (Protection.BEST_EFFORT, None),
        (Protection.FROM_BEGINNING, NOT_RESUMABLE),
    ],
)
def test_what_the_worker_reported(protection: Protection | None, why: Unprotected | None) -> None:
    claimed = job("ckpt")
    assert why_unprotected(with_status(claimed, protection=protection), DEFAULTS) is why
    assert why_unprotected(claimed, DEFAULTS, protection) is why
    assert why_unprotected(with_status(job(), protection=protection), DEFAULTS) is NO_PLACE


def test_a_newer_report_counts_before_the_status() -> None:
    lost = with_status(job("ckpt"), protection=Protection.FROM_BEGINNING)
    assert why_unprotected(lost, DEFAULTS, Protection.EXACT) is None


def test_the_durable_checkpoint() -> None:
    saved = CheckpointReport(190)
    assert durable_checkpoint(with_status(job("ckpt"), checkpoint=saved), DEFAULTS) == saved
    # As an earlier release wrote it.
    assert durable_checkpoint(with_status(job(), checkpoint=saved), DEFAULTS) is None


@pytest.mark.parametrize(
    ("policy", "allowed", "claim", "why"),
    [
        (SpotPolicy.PREFER, False, "ckpt", None),
        (SpotPolicy.PREFER, False, None, NO_PLACE),
        (SpotPolicy.PREFER, True, None, None),
        (SpotPolicy.NEVER, False, None, None),
    ],
)
def test_a_preference_of_spot_nodes(
    policy: SpotPolicy, allowed: bool, claim: str | None, why: Unprotected | None
) -> None:
    configuration = Configuration(spot_allow_unprotected=allowed)
    assert kept_off_spot(make_job(claim=claim, spot=policy), configuration) is why


def test_a_job_that_requires_spot_nodes_is_placed_on_them_and_warned() -> None:
    lost = with_status(make_job(spot=SpotPolicy.REQUIRE), protection=Protection.FROM_BEGINNING)
    assert kept_off_spot(lost, DEFAULTS) is None
    assert unprotected_message(lost, NOT_RESUMABLE, "it draws from os.urandom") == (
        "an interruption starts the job again from the beginning: it draws from os.urandom; "
        "docs/guides/worker.md names what helps; "
        "spot.policy: Require places it on spot nodes all the same"
    )


def test_a_path_that_nothing_matches_refers_to_the_page_on_paths() -> None:
    text = unprotected_message(job("ckpt", path="own/*.pt"), NOT_RESUMABLE, "nothing matches")
    assert text.endswith("nothing matches; docs/guides/checkpoints.md names what helps")


def test_the_next_step() -> None:
    told = unprotected_message(job(), NO_PLACE)
    assert told.endswith("create the job again with checkpoint.volumeClaimName")
    elsewhere = unprotected_message(job(path="/tmp/x.pt"), NO_PLACE)
    assert "checkpoint.path (/tmp/x.pt) is on no persistent volume" in elsewhere
    assert elsewhere.endswith("create the job again with a PersistentVolumeClaim mounted there")
    assert "the worker found" in unprotected_message(job("c"), NOT_RESUMABLE)
