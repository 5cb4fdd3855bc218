"""What a soak tells of a broken promise: the jobs that it names, and nobody else."""

from typing import Any

from tests.harness.history import Revision
from tests.soak.story import tell


def _job(version: int, name: str, **status: Any) -> Revision:
    manifest = {"metadata": {"name": name}, "spec": {}, "status": status}
    return Revision(version, "GPUJob", "MODIFIED", manifest)


def _pod(version: int, job: str, phase: str) -> Revision:
    metadata = {"name": f"{job}-1-0", "labels": {"gpujob.dev/job": job}, "deletionTimestamp": "now"}
    return Revision(version, "Pod", "DELETED", {"metadata": metadata, "status": {"phase": phase}})


def _lease(version: int, holder: str) -> Revision:
    manifest = {"metadata": {"name": "gpujob"}, "spec": {"holderIdentity": holder}}
    return Revision(version, "Lease", "MODIFIED", manifest)


REVISIONS = (
    _lease(0, "one"),
    _job(1, "job1", phase="Running", attempt=1),
    _job(2, "job12", phase="Pending"),
    _lease(2, "one"),
    _lease(2, ""),
    _lease(3, "two"),
    _pod(3, "job1", "Succeeded"),
    _pod(4, "job12", "Failed"),
)


def test_the_lives_of_the_jobs_and_of_their_pods_are_told() -> None:
    told = tell("I5 at revision 3: job1: attempt 2, the one before was done", REVISIONS).split("\n")
    assert told == [
        "  0 one takes the lead",
        "  1 MODIFIED job1: Running, attempt 1, stop None, []",
        "  3 two takes the lead",
        "  3 DELETED job1-1-0 deleted: Succeeded []",
    ]


def test_nodes_that_change_are_told() -> None:
    def node(version: int, *taints: str) -> Revision:
        spec = {"taints": [{"key": one} for one in taints]}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        manifest = {"metadata": {"name": "n0"}, "spec": spec, "status": status}
        return Revision(version, "Node", "MODIFIED", manifest)

    told = tell("I5: job1", [node(1), node(2), node(3, "example.com/goes")]).split("\n")
    assert told == [
        "  1 MODIFIED n0: ready ['True'], taints []",
        "  3 MODIFIED n0: ready ['True'], taints ['example.com/goes']",
    ]


def test_a_problem_without_a_job_has_no_story() -> None:
    assert tell("the watches catch up: not in time", REVISIONS) == ""


def test_where_the_api_server_was_away_is_told() -> None:
    told = tell("I5 at revision 3: job1", REVISIONS, cuts=[2, 1]).split("\n")
    away = "the API server goes away or is there again"
    assert told[2:4] == [f"  1 {away}", f"  2 {away}"]
