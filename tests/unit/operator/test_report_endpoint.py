"""Reports go to the leader's pod alone, whoever led before and whatever others do to the slice."""

import asyncio

import pytest

from gpujob_operator.client.api_errors import NotFound, Unavailable
from gpujob_operator.client.kube import ENDPOINT_SLICES, Manifest
from gpujob_operator.leadership import report_endpoint
from gpujob_operator.leadership.report_endpoint import ReportEndpoint, ReportService
from tests.harness.fake_kube import FakeKube, Fault
from tests.harness.waiting import eventually

NAME = "reports-ipv4"


def service(address: str = "10.0.0.7", pod: str = "operator-a") -> ReportService:
    return ReportService("gpujob-system", "reports", 8080, pod, f"uid-{pod}", address)


async def slice_of(kube: FakeKube, name: str = NAME) -> Manifest:
    return await kube.get(ENDPOINT_SLICES, name, "gpujob-system")


def always() -> bool:
    return True


async def test_the_slice_names_the_service_the_pod_and_its_port() -> None:
    kube = FakeKube()
    await ReportEndpoint(kube, service(), always).publish()
    found = await slice_of(kube)
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == "reports"
    assert found["addressType"] == "IPv4"
    assert found["endpoints"] == [{"addresses": ["10.0.0.7"], "conditions": {"ready": True}}]
    assert found["ports"] == [{"name": "reports", "port": 8080, "protocol": "TCP"}]
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "operator-a", "uid-operator-a")


async def test_the_next_leader_takes_the_slice_over() -> None:
    kube = FakeKube()
    await ReportEndpoint(kube, service(), always).publish()
    await ReportEndpoint(kube, service("10.0.0.8", "operator-b"), always).publish()
    found = await slice_of(kube)
    assert [one["addresses"] for one in found["endpoints"]] == [["10.0.0.8"]]
    assert [one["name"] for one in found["metadata"]["ownerReferences"]] == ["operator-b"]


async def test_an_ipv6_pod_has_a_slice_of_its_own() -> None:
    kube = FakeKube()
    await ReportEndpoint(kube, service("fd00::7"), always).publish()
    assert (await slice_of(kube, "reports-ipv6"))["addressType"] == "IPv6"
    with pytest.raises(NotFound):
        await slice_of(kube)


async def test_a_slice_that_another_leader_makes_at_the_same_time() -> None:
    kube = FakeKube()
    await ReportEndpoint(kube, service("10.0.0.8", "operator-b"), always).publish()
    missing = NotFound(404, "NotFound", "")
    kube.faults = [Fault(lambda call: call.verb == "patch", missing)]
    await ReportEndpoint(kube, service(), always).publish()
    assert (await slice_of(kube))["endpoints"][0]["addresses"] == ["10.0.0.7"]


async def test_it_is_published_on_taking_the_lead_again_after_a_failure_and_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_endpoint, "REPEAT_SECONDS", 0.01)
    monkeypatch.setattr(report_endpoint, "RETRY_SECONDS", 0.01)
    kube, leads, took_lead = FakeKube(), asyncio.Event(), asyncio.Event()
    kube.faults = [Fault(lambda call: True, Unavailable(503, "Down", ""), times=3)]
    keeping = asyncio.create_task(ReportEndpoint(kube, service(), leads.is_set).keep(took_lead))
    took_lead.set()
    await eventually(lambda: not took_lead.is_set())
    assert kube.calls == [], "does not lead"
    leads.set()
    took_lead.set()
    await eventually(lambda: len(kube.calls) > 8)
    assert (await slice_of(kube))["endpoints"][0]["addresses"] == ["10.0.0.7"]
    leads.clear()
    await eventually(lambda: not leads.is_set())
    keeping.cancel()
