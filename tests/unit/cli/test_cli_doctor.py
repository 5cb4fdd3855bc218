"""kubectl gpujob doctor: each seeded fault is found, alone, with its remedy."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.manifest import RESOURCES, from_manifest
from gpujob_api.version import installed_version
from gpujob_operator.leadership.lease import LeaseSettings
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.verbs.doctor import LEASE, Facts, Verdict, diagnose
from tests.harness.builders import make_gpu, make_template
from tests.harness.cli_jobs import NOW, MemoryCluster, condition, job, run_command
from tests.harness.manifests import gpu_node_manifest

Change = Callable[[Facts], None]


def gpu_node(name: str = "n0", observed_at: str = "2026-11-20T11:59:00Z", **gpu: Any) -> GPUNode:
    made = gpu_node_manifest(name, make_gpu(**gpu), observed_at=observed_at)
    return from_manifest(GPUNode, made)


def sound() -> Facts:
    """A cluster in which all is well."""
    metadata = {"namespace": "system", "name": "gpujob-operator"}
    labels = {"app.kubernetes.io/version": installed_version()}
    crds = [
        {
            "metadata": {"name": resource.crd_name},
            "spec": {"versions": [{"name": "v1alpha1", "served": True}]},
        }
        for resource in RESOURCES.values()
    ]
    return Facts(
        now=NOW,
        server_time=NOW,
        crds=crds,
        deployments=[
            {
                "metadata": {**metadata, "labels": labels},
                "spec": {"replicas": 1},
                "status": {"availableReplicas": 1},
            }
        ],
        daemon_sets=[
            {"metadata": metadata, "status": {"desiredNumberScheduled": 1, "numberReady": 1}}
        ],
        operator_pods=[
            {"metadata": metadata, "status": {"containerStatuses": [{"restartCount": 0}]}}
        ],
        leases=[
            {
                "metadata": metadata,
                "spec": {"renewTime": "2026-11-20T11:59:58.000000Z", "holderIdentity": "a"},
            }
        ],
        nodes=[{"metadata": {"name": "n0"}}],
        gpu_nodes=[gpu_node()],
        queues=[],
        claims=[{"metadata": {"namespace": "vision", "name": "c"}, "status": {"phase": "Bound"}}],
        jobs=[job(spec={"queue": "default", "checkpoint": {"volumeClaimName": "c"}})],
        configurations={"system/gpujob": "pricePerGpuHour: {a10: 1.5}"},
    )


def test_a_sound_cluster_has_no_findings() -> None:
    assert {one.verdict for one in diagnose(sound())} == {Verdict.OK}


def _set(**fields: Any) -> Change:
    def change(facts: Facts) -> None:
        for name, value in fields.items():
            setattr(facts, name, value)

    return change


def _deployment(**fields: Any) -> Change:
    def change(facts: Facts) -> None:
        assert facts.deployments is not None
        facts.deployments = [{**facts.deployments[0], **fields}]

    return change


def _lease_spec(**fields: Any) -> Change:
    def change(facts: Facts) -> None:
        assert facts.leases is not None
        facts.leases = [{**facts.leases[0], "spec": {**facts.leases[0]["spec"], **fields}}]

    return change


def _old_version(facts: Facts) -> None:
    assert facts.crds is not None
    first, *others = facts.crds
    old = {**first, "spec": {"versions": [{"name": "v1", "served": True}]}}
    facts.crds = [old, *others]


REFUSED = condition("Accepted", "False", "ParentNotFound", "spec.parent: GPUQueue 'x' is missing")
QUEUE = from_manifest(
    GPUQueue,
    {
        "apiVersion": "gpujob.dev/v1alpha1",
        "kind": "GPUQueue",
        "metadata": {"name": "vision"},
        "spec": {},
        "status": {"conditions": [REFUSED]},
    },
)
OPERATOR = {"namespace": "system", "name": "gpujob-operator"}
AGENTS = {"desiredNumberScheduled": 3, "numberReady": 1}
RESTARTED = {"metadata": OPERATOR, "status": {"containerStatuses": [{"restartCount": 9}]}}
MINE = {"queue": "default", "checkpoint": {"volumeClaimName": "c"}}
GOING = {"namespace": "vision", "name": "c", "deletionTimestamp": "2026-11-20T11:00:00Z"}
GOING_CLAIM = {"metadata": GOING, "status": {"phase": "Bound"}}
WITH_DATA = make_template(
    volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
)
UNSEEN = replace(job(spec={"queue": "default"}), status=type(job().status)())

FAULTS: dict[str, tuple[Change, str, Verdict]] = {
    "a CRD is missing": (_set(crds=[]), "CRDs", Verdict.FAULT),
    "a CRD of another version": (_old_version, "CRDs", Verdict.FAULT),
    "the operator has no pod": (_deployment(status={}), "operator", Verdict.FAULT),
    "the operator is scaled to 0": (_deployment(spec={"replicas": 0}), "operator", Verdict.FAULT),
    "the operator crashes": (_set(operator_pods=[RESTARTED]), "operator's restarts", Verdict.FAULT),
    "another version": (
        _deployment(metadata={**OPERATOR, "labels": {"app.kubernetes.io/version": "9.9"}}),
        "versions",
        Verdict.NOTE,
    ),
    "nobody leads": (
        _lease_spec(renewTime="2026-11-20T11:50:00.000000Z"),
        "leadership",
        Verdict.FAULT,
    ),
    "the operator's short lease is over": (
        _lease_spec(renewTime="2026-11-20T11:59:40.000000Z", leaseDurationSeconds=5),
        "leadership",
        Verdict.FAULT,
    ),
    "nobody has led": (_set(leases=[]), "leadership", Verdict.FAULT),
    "agents are not ready": (
        _set(daemon_sets=[{"metadata": OPERATOR, "status": AGENTS}]),
        "agents",
        Verdict.FAULT,
    ),
    "agents select no node": (
        _set(daemon_sets=[{"metadata": OPERATOR, "status": {}}]),
        "agents",
        Verdict.FAULT,
    ),
    "a node was never read": (
        _set(nodes=[{"metadata": {"name": name}} for name in ("n0", "n1")]),
        "GPU nodes",
        Verdict.FAULT,
    ),
    "no node is labelled": (_set(nodes=[]), "GPU nodes", Verdict.FAULT),
    "readings are old": (
        _set(gpu_nodes=[gpu_node(observed_at="2026-11-20T11:00:00Z")]),
        "readings",
        Verdict.FAULT,
    ),
    "a GPU is broken": (
        _set(gpu_nodes=[gpu_node(healthy=False)]),
        "GPUs",
        Verdict.FAULT,
    ),
    "a queue's parent is missing": (_set(queues=[QUEUE]), "queues", Verdict.FAULT),
    "a job's queue is missing": (
        _set(jobs=[job(spec={"queue": "visoin"})]),
        "queues of jobs",
        Verdict.FAULT,
    ),
    "a job was never looked at": (_set(jobs=[UNSEEN]), "answers", Verdict.FAULT),
    "a claim is missing": (_set(claims=[]), "claims", Verdict.FAULT),
    "a claim is being deleted": (_set(claims=[GOING_CLAIM]), "claims", Verdict.FAULT),
    "a claim of the template is missing": (
        _set(jobs=[job(spec={"queue": "default", "template": WITH_DATA})]),
        "claims",
        Verdict.FAULT,
    ),
    "a job is unprotected": (
        _set(
            jobs=[
                job(
                    spec=MINE,
                    status={"conditions": [condition("Unprotected", "True", "NoDurablePlace")]},
                )
            ]
        ),
        "jobs",
        Verdict.NOTE,
    ),
    "a price has no model": (
        _set(configurations={"system/gpujob": "pricePerGpuHour: {A10: 1, V100: 1}"}),
        "prices",
        Verdict.NOTE,
    ),
    "a configuration cannot be read": (
        _set(configurations={"system/gpujob": "pricePerGpuHour: 3"}),
        "prices",
        Verdict.FAULT,
    ),
    "a clock is wrong": (_set(server_time=NOW - timedelta(minutes=5)), "clocks", Verdict.NOTE),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_found_with_its_remedy(fault: str) -> None:
    change, check, verdict = FAULTS[fault]
    facts = sound()
    change(facts)
    found = [one for one in diagnose(facts) if one.verdict is not Verdict.OK]
    assert [(one.check, one.verdict) for one in found] == [(check, verdict)]
    assert found[0].text
    assert found[0].remedy or check == "queues", "a queue's message has its remedy"


def test_an_operator_outside_the_cluster_that_leads_is_no_fault() -> None:
    facts = sound()
    facts.deployments = []
    assert {one.verdict for one in diagnose(facts)} == {Verdict.OK}
    facts.leases = []
    assert {one.check for one in diagnose(facts) if one.verdict is Verdict.FAULT} == {
        "operator",
        "leadership",
    }


def test_a_right_that_is_missing_is_no_fault() -> None:
    facts = sound()
    facts.leases, facts.missing = None, {"leases": "you may not use leases"}
    [found] = [one for one in diagnose(facts) if one.verdict is not Verdict.OK]
    assert (found.check, found.verdict) == ("leadership", Verdict.UNKNOWN)
    assert found.text == "you may not use leases"


def test_the_command_ends_with_1_if_there_is_a_fault_and_reads_what_it_may() -> None:
    class Refusing(MemoryCluster):
        def objects(self, what: str, path: str, **query: str) -> Any:
            if "leases" in path:
                raise UserError("you may not use leases (403 Forbidden)")
            return super().objects(what, path, **query)

    ran = run_command(Refusing(), "doctor")
    assert ran.exit_code == 1
    assert "fault: CRDs" in ran.stdout
    assert "not checked: leadership" in ran.stdout
    found = json.loads(run_command(Refusing(), "doctor", "-o", "json").stdout)
    assert found["kind"] == "FindingList"


def test_an_api_server_that_is_away_is_an_error_and_no_list_of_unchecked_things() -> None:
    class Away(MemoryCluster):
        def objects(self, what: str, path: str, **query: str) -> Any:
            raise UserError("the connection was refused")

        def jobs(self, **_: Any) -> Any:
            raise UserError("the connection was refused")

        def server_time(self) -> Any:
            return None

    ran = run_command(Away(), "doctor")
    assert (ran.exit_code, str(ran.exception)) == (1, "the connection was refused")


def test_the_lease_is_the_one_that_the_operator_holds() -> None:
    assert {field.name: field.default for field in fields(LeaseSettings)}["name"] == LEASE
