"""The pages about interruptions say what the planner does, and name the test that shows each row.

That the named tests exist is asked of all documents (test_project_files).
"""

import re
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, StopReason
from gpujob_api.meta import TAINT_RECLAIM
from gpujob_operator.decide.model.snapshot import NodeView, PodView, Taint
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu_node,
    make_job,
    make_node,
    make_pod,
    make_snapshot,
    running,
    statuses,
)
from tests.harness.repository import ROOT

TEST = re.compile(r"`tests/[a-z0-9_/]+\.py(::test_[a-z0-9_]+)?`")
AT = 10.0
JOB = running(make_job("job"))


def table(page: str, section: str) -> dict[str, list[str]]:
    """The first table below these words: the other cells by the first one."""
    text = (ROOT / page).read_text(encoding="utf-8").partition(section)[2]
    lines = text[text.index("\n| ") :].strip().partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]
    return {cells[0]: cells[1:] for cells in rows}


GUIDE = table("docs/guides/interruptions.md", "# What interrupts a job")
PODS = table("docs/reference/nodes.md", "## Signs on pods")


def stop_of(
    job: GPUJob = JOB, node: NodeView | None = None, reason: str | None = None
) -> StopReason | None:
    """Why the job is stopped on this node. `reason`: its pod is deleted, for this reason."""
    pod: PodView = make_pod(job)
    if reason is not None:
        pod = replace(pod, deletion_at=after(40), reason=reason)
    snapshot = make_snapshot(
        job, pods=[pod], nodes=[node or make_node()], gpu_nodes=[make_gpu_node(at=AT)]
    )
    return statuses(plan(snapshot, after(AT)).items).get("job", job.status).stop


def tainted(key: str, effect: str = "NoSchedule") -> NodeView:
    return make_node(taints=(Taint(key, effect),))


CORDONED = make_node(unschedulable=True)
STOPS: dict[str, dict[str, Any]] = {
    "`spec.suspend: true`": {"job": replace(JOB, spec=replace(JOB.spec, suspend=True))},
    "`kubectl drain NODE`": {"node": CORDONED, "reason": "EvictionByEvictionAPI"},
    "the eviction API": {"reason": "EvictionByEvictionAPI"},
    "a `NoExecute` taint": {
        "node": tainted("example.com/broken", "NoExecute"),
        "reason": "DeletionByTaintManager",
    },
    "`kubectl delete pod`": {"reason": ""},
    "`kubectl cordon NODE`": {"node": CORDONED},
    "`kubectl label node NODE gpujob.dev/managed-`": {"node": make_node(managed=False)},
    "a taint by which an autoscaler takes the node away": {
        "node": tainted("karpenter.sh/disrupted")
    },
    "a spot notice": {"node": tainted(TAINT_RECLAIM)},
}
# Not of one sign on the job, its pod or its node.
OTHERS = {
    "a node that is gone or does not answer",
    "another job takes the GPUs",
    "`kubectl delete gpujob`",
}


def test_every_row_is_tried_or_told_apart() -> None:
    assert GUIDE.keys() == STOPS.keys() | OTHERS


@pytest.mark.parametrize("row", STOPS)
def test_what_a_running_job_is_stopped_for(row: str) -> None:
    """With the reason that the guide says, and for nothing where it says nothing."""
    said = GUIDE[row][1]
    stop = stop_of(**STOPS[row])
    assert stop_of() is None
    if stop is None:
        assert said == "nothing"
    else:
        assert f"reason `{stop.reason}`" in said or f"event `Stopping{stop.reason}`" in said


@pytest.mark.parametrize("rows", [GUIDE, PODS], ids=["guide", "reference"])
def test_every_row_names_the_test_that_shows_it(rows: dict[str, list[str]]) -> None:
    assert [name for name, cells in rows.items() if not TEST.search(cells[-1])] == []
