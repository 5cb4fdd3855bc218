"""Services on a real control plane, with real serving processes."""

import asyncio
import contextlib
import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
import yaml

from bench.services import NAME, OURS, PODS, play, ready_addresses, service
from bench.zero import play_zero, zero_request
from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.cluster.options import ClusterOptions, NodeOptions
from gpujob_local.control_plane.api_client import ApiClient
from tests.harness.repository import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_SECONDS = 300.0


def body_of(samples: int) -> bytes:
    shape, data = [samples, 1, 8, 8], list(range(64)) * samples
    image = {"name": "image", "datatype": "UINT8", "shape": shape, "data": data}
    return json.dumps({"inputs": [image]}).encode()


def cluster_of(*nodes: NodeOptions) -> ClusterOptions:
    return ClusterOptions(nodes=nodes, operator_lease_seconds=5)


def test_an_update_loses_no_request() -> None:
    nodes = (NodeOptions("node-1", cards=1), NodeOptions("node-2", cards=1))
    with LocalCluster.start(cluster_of(*nodes)) as cluster:
        rows = asyncio.run(play(cluster, 10.0, 1, quick=True))
    assert [row["act"] for row in rows] == ["nothing", "rolling update"]
    assert all(row["lost"] == 0 and row["answered"] > 50 for row in rows), rows


def test_a_request_starts_or_wakes_a_replica_that_stops_or_parks_again() -> None:
    with LocalCluster.start(cluster_of(NodeOptions("node-1", cards=1))) as cluster:
        rows = asyncio.run(play_zero(cluster, service(1), zero_request(), 1))
    acts = ["a replica runs", "from zero", "from zero", "from parked"]
    assert [row["act"] for row in rows] == acts
    assert {row["status"] for row in rows} == {200}, rows
    assert rows[-1]["reserved_mib"] > 0, "a parked replica keeps its context"


def test_a_deleted_gate_is_replaced_and_an_edit_removes_it() -> None:
    with LocalCluster.start(cluster_of(NodeOptions("node-1", cards=1))) as cluster:
        client = cluster.client()
        body = service(1)
        body["spec"]["replicas"] = {"minimum": 0}
        client.create(f"{OURS}/gpuservices", body)

        def status() -> dict[str, Any]:
            return client.get(f"{OURS}/gpuservices/{NAME}").get("status") or {}

        def gate() -> dict[str, Any]:
            return status().get("gate") or {}

        def selects_gate() -> bool:
            front = client.get(f"/api/v1/namespaces/default/services/{NAME}")
            return "gpujob.dev/gate" in front["spec"]["selector"]

        until(lambda: gate().get("ready") and status().get("readyReplicas"))
        first = gate()["name"]
        client.delete(f"{PODS}/{first}")
        until(lambda: gate().get("ready") and gate()["name"] != first)
        assert answer(gate()["address"])["outputs"]
        assert selects_gate()
        client.merge(f"{OURS}/gpuservices/{NAME}", {"spec": {"replicas": {"minimum": 1}}})
        until(lambda: not selects_gate() and not gate())
        assert client.get(PODS, labelSelector="gpujob.dev/gate")["items"] == []
        client.merge(f"{OURS}/gpuservices/{NAME}", {"spec": {"replicas": {"minimum": 0}}})
        until(lambda: selects_gate() and gate().get("ready"))
        assert answer(gate()["address"])["outputs"]


def test_a_service_answers_while_a_training_shares_its_card() -> None:
    with LocalCluster.start(cluster_of(NodeOptions("node-1", cards=1))) as cluster:
        client = cluster.client()
        address = share_a_card(client, service(1))
        held = [gpus_of(one) for one in client.get(f"{OURS}/gpujobs")["items"]]
        assert len(held) == 2
        assert held[0] == held[1] != []
        for _ in range(50):
            assert answer(address)["outputs"]


def test_a_training_yields_while_a_service_on_its_card_needs_it() -> None:
    """No batch of 256 samples keeps an objective of a millisecond."""
    with LocalCluster.start(cluster_of(NodeOptions("node-1", cards=1))) as cluster:
        client = cluster.client()
        body = service(1)
        body["spec"]["objective"] = {"latencyMilliseconds": 1, "percentile": 99}
        address = share_a_card(client, body)

        def yields_with_requests() -> bool:
            with contextlib.suppress(urllib.error.HTTPError):
                answer(address, samples=256)
            return (condition_of(client, "Yielding") or {}).get("status") == "True"

        until(yields_with_requests)
        [replica] = [name for name in names_of_jobs(client) if name != "first"]
        assert f"default/{replica} need more than" in condition_of(client, "Yielding")["message"]
        until(lambda: condition_of(client, "Yielding")["status"] == "False")


def share_a_card(client: ApiClient, body: dict[str, Any]) -> str:
    """Starts the service and a training on the only card. Returns the service's address."""
    # A training that was never measured counts as 100 % busy.
    body["spec"]["sharing"] = {"maxSlowdownPercent": 100}
    client.create(f"{OURS}/gpuservices", body)
    until(lambda: len(ready_addresses(client)) == 1)
    manifests = list(yaml.safe_load_all((ROOT / "examples" / "gpujob.yaml").read_text()))
    for manifest in manifests:
        core = manifest["apiVersion"] == "v1"
        folder = "/api/v1/namespaces/default/persistentvolumeclaims" if core else f"{OURS}/gpujobs"
        if not core:
            # An unmeasured job with Auto would wait for a card of its own.
            shared = {"mode": "Shared", "maxSlowdownPercent": 100}
            manifest["spec"] |= {"gpu": {"memory": "700Mi"}, "sharing": shared}
        client.create(folder, manifest)

    def trains() -> bool:
        job = client.get(f"{OURS}/gpujobs/first")
        return (job.get("status", {}).get("measurement") or {}).get("step", 0) > 0

    until(trains)
    [address] = ready_addresses(client)
    return address


def names_of_jobs(client: ApiClient) -> list[str]:
    return [one["metadata"]["name"] for one in client.get(f"{OURS}/gpujobs")["items"]]


def condition_of(client: ApiClient, kind: str) -> Any:
    """Returns the training's condition, or None."""
    found = client.get(f"{OURS}/gpujobs/first").get("status", {}).get("conditions", ())
    return next((one for one in found if one["type"] == kind), None)


def gpus_of(job: dict[str, Any]) -> list[str]:
    placement = job.get("status", {}).get("placement") or {}
    return [gpu for worker in placement.get("workers", ()) for gpu in worker["gpus"]]


def answer(address: str, samples: int = 1) -> Any:
    request = urllib.request.Request(
        f"http://{address}/v2/models/{NAME}/infer",
        data=body_of(samples),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as found:
        return json.loads(found.read())


def until(condition: Any) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "not within the limit"
        time.sleep(0.05)
