"""A process node that a cloud takes away: notice, SIGTERM and grace, gone."""

import pytest

from gpujob_local.cluster.cluster import ClusterOptions, NodeOptions
from tests.harness.cluster import StartCluster
from tests.harness.pods import IGNORE_TERM, Pods, pod, state, wait_log

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.mark.promise("I13")
def test_a_reclaimed_node_gives_notice_grace_and_is_gone(local_cluster: StartCluster) -> None:
    nodes = (NodeOptions("spot-1", spot=True),)
    cluster = local_cluster(ClusterOptions(nodes=nodes, agents=False, operator=False))
    own = Pods(cluster.client())
    script = (
        "import signal, sys, time\n"
        "def stop(*_):\n"
        "    open('/dev/termination-log', 'w').write('checkpoint 7'); sys.exit(143)\n"
        "signal.signal(15, stop); print('up')\nwhile True: signal.pause()"
    )
    own.create(pod("moves", script))
    wait_log(cluster, "moves", "up")
    own.create(pod("stubborn", IGNORE_TERM))
    wait_log(cluster, "stubborn", "up")
    cluster.reclaim("spot-1", notice_seconds=0.5, grace_seconds=2)
    assert cluster.client().get("/api/v1/nodes")["items"] == []
    item = own.get("moves")
    assert item is not None
    ended = state(item)["terminated"]
    assert (ended["exitCode"], ended["message"]) == (143, "checkpoint 7")
    assert item["status"]["reason"] == "Terminated"
    stubborn = own.get("stubborn")
    assert stubborn is not None
    assert state(stubborn)["terminated"]["exitCode"] == 137
    conditions = {entry["type"]: entry for entry in item["status"]["conditions"]}
    assert conditions["DisruptionTarget"]["reason"] == "TerminationByKubelet"
