"""Services on a real control plane, with real serving processes."""

import asyncio
import json
import time
import urllib.request
from typing import Any

import pytest
import yaml

from bench.services import NAME, OURS, play, ready_addresses, service
from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.cluster.options import ClusterOptions, NodeOptions
from tests.harness.repository import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_SECONDS = 300.0
BODY = json.dumps(
    {
        "inputs": [
            {
                "name": "image",
                "datatype": "UINT8",
                "shape": [1, 1, 8, 8],
                "data": list(range(64)),
            }
        ]
    }
).encode()


def cluster_of(*nodes: NodeOptions) -> ClusterOptions:
    return ClusterOptions(nodes=nodes, operator_lease_seconds=5)


def test_an_update_loses_no_request() -> None:
    nodes = (NodeOptions("node-1", cards=1), NodeOptions("node-2", cards=1))
    with LocalCluster.start(cluster_of(*nodes)) as cluster:
        rows = asyncio.run(play(cluster, 10.0, 1, quick=True))
    assert [row["act"] for row in rows] == ["nothing", "rolling update"]
    assert all(row["lost"] == 0 and row["answered"] > 50 for row in rows), rows


def test_a_service_answers_while_a_training_shares_its_card() -> None:
    with LocalCluster.start(cluster_of(NodeOptions("node-1", cards=1))) as cluster:
        client = cluster.client()
        body = service(1)
        # A training that was never measured counts as 100 % busy.
        body["spec"]["sharing"] = {"maxSlowdownPercent": 100}
        client.create(f"{OURS}/gpuservices", body)
        until(lambda: len(ready_addresses(client)) == 1)
        manifests = list(yaml.safe_load_all((ROOT / "examples" / "gpujob.yaml").read_text()))
        for manifest in manifests:
            core = manifest["apiVersion"] == "v1"
            folder = (
                "/api/v1/namespaces/default/persistentvolumeclaims" if core else f"{OURS}/gpujobs"
            )
            if not core:
                # An unmeasured job with Auto would wait for a card of its own.
                shared = {"mode": "Shared", "maxSlowdownPercent": 100}
                manifest["spec"] |= {"gpu": {"memory": "700Mi"}, "sharing": shared}
            client.create(folder, manifest)

        def trains() -> bool:
            job = client.get(f"{OURS}/gpujobs/first")
            return (job.get("status", {}).get("measurement") or {}).get("step", 0) > 0

        until(trains)
        held = [gpus_of(one) for one in client.get(f"{OURS}/gpujobs")["items"]]
        assert len(held) == 2
        assert held[0] == held[1] != []
        [address] = ready_addresses(client)
        for _ in range(50):
            assert answer(address)["outputs"]


def gpus_of(job: dict[str, Any]) -> list[str]:
    placement = job.get("status", {}).get("placement") or {}
    return [gpu for worker in placement.get("workers", ()) for gpu in worker["gpus"]]


def answer(address: str) -> Any:
    request = urllib.request.Request(
        f"http://{address}/v2/models/{NAME}/infer",
        data=BODY,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as found:
        return json.loads(found.read())


def until(condition: Any) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "not within the limit"
        time.sleep(0.05)
