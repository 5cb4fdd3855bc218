"""The throughput benchmark with Kueue: what Kueue is given, and how its figures are compared."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.throughput.figures import figure_rows, process_rows, ratio_columns, ratios, write_rows
from bench.throughput.kueue_manifests import (
    Ports,
    cluster_queue,
    configuration,
    definitions,
    local_queue,
    resource_flavor,
    webhook_configurations,
)
from bench.throughput.kwok import node_manifest
from bench.throughput.load import KINDS, KUEUE_JOBS, PLAIN_JOBS
from gpujob_api.quantities import quantity

WEBHOOKS = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mutating-webhook-configuration}
webhooks:
- name: mpod.kb.io
  failurePolicy: Fail
  clientConfig: {service: {name: webhook-service, namespace: system, path: /mutate--v1-pod}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
- name: mjob.kb.io
  failurePolicy: Fail
  clientConfig: {service: {name: webhook-service, namespace: system, path: /mutate-batch-v1-job}}
  rules: [{apiGroups: [batch], apiVersions: [v1], operations: [CREATE], resources: [jobs]}]
- name: mcron.kb.io
  clientConfig: {service: {name: webhook-service, namespace: system, path: /mutate-cron}}
  rules: [{apiGroups: [batch], apiVersions: [v1], operations: [CREATE], resources: [cronjobs]}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validating-webhook-configuration}
webhooks:
- name: vworkload.kb.io
  clientConfig: {service: {name: webhook-service, namespace: system, path: /validate-workload}}
  rules: [{apiGroups: [kueue.x-k8s.io], apiVersions: [v1beta2], resources: [workloads/status]}]
"""
CRDS = """
metadata: {name: workloads.kueue.x-k8s.io}
spec:
  versions:
  - {name: v1beta1, served: true, storage: false}
  - {name: v1beta2, served: true, storage: true}
---
metadata: {name: topologies.kueue.x-k8s.io}
spec:
  versions: [{name: v1beta2, served: true, storage: true}]
"""
PATCH = """
metadata: {name: workloads.kueue.x-k8s.io}
spec:
  conversion:
    strategy: Webhook
    webhook:
      clientConfig: {service: {namespace: system, name: webhook-service, path: /convert}}
      conversionReviewVersions: [v1]
"""
DEFAULT = """
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health: {healthProbeBindAddress: ":8081"}
metrics: {bindAddress: ":8443"}
webhook: {port: 9443}
leaderElection: {leaderElect: true, resourceName: lease}
controller: {groupKindConcurrency: {Job.batch: 5}}
clientConnection: {qps: 300, burst: 500}
integrations: {frameworks: [batch/job, pod]}
"""


def test_only_webhooks_of_batch_jobs_and_of_its_own_kinds_are_left() -> None:
    mutating, validating = webhook_configurations(yaml.safe_load_all(WEBHOOKS), 9443)
    assert [hook["name"] for hook in mutating["webhooks"]] == ["mjob.kb.io"]
    assert [hook["name"] for hook in validating["webhooks"]] == ["vworkload.kb.io"]
    assert mutating["webhooks"][0]["failurePolicy"] == "Fail"


def test_webhooks_are_called_by_the_service_that_stands_for_loopback() -> None:
    mutating, _ = webhook_configurations(yaml.safe_load_all(WEBHOOKS), 20123)
    assert mutating["metadata"] == {"name": "kueue-mutating-webhook-configuration"}
    assert mutating["webhooks"][0]["clientConfig"]["service"] == {
        "namespace": "kueue-system",
        "name": "kueue-webhook-service",
        "path": "/mutate-batch-v1-job",
        "port": 20123,
    }


def test_only_the_version_that_is_stored_is_left_of_a_kind() -> None:
    made = definitions(yaml.safe_load_all(CRDS), yaml.safe_load_all(PATCH), 20123)
    names = [[version["name"] for version in one["spec"]["versions"]] for one in made]
    assert names == [["v1beta2"], ["v1beta2"]]


def test_who_converts_is_said_where_the_installation_says_it() -> None:
    """Kueue writes its authority there before it starts."""
    workloads, topologies = definitions(yaml.safe_load_all(CRDS), yaml.safe_load_all(PATCH), 20123)
    assert "conversion" not in topologies["spec"]
    changed = workloads["spec"]["conversion"]
    assert changed["strategy"] == "Webhook"
    assert changed["webhook"]["conversionReviewVersions"] == ["v1"]
    service = changed["webhook"]["clientConfig"]["service"]
    assert (service["namespace"], service["path"]) == ("kueue-system", "/convert")
    assert service["port"] == 20123


def test_kueue_listens_on_loopback_alone_and_keeps_its_concurrency() -> None:
    made = configuration(yaml.safe_load(DEFAULT), Path("certificates"), Ports(1, 2, 3))
    assert made["webhook"] == {"host": "127.0.0.1", "port": 1, "certDir": "certificates"}
    assert made["health"]["healthProbeBindAddress"] == "127.0.0.1:2"
    assert made["metrics"]["bindAddress"] == "127.0.0.1:3"
    assert made["controller"] == {"groupKindConcurrency": {"Job.batch": 5}}
    assert made["clientConnection"] == {"qps": 1000, "burst": 1000}
    assert made["integrations"] == {"frameworks": ["batch/job"]}
    assert made["leaderElection"] == {"leaderElect": False}
    assert (made["kind"], made["namespace"]) == ("Configuration", "kueue-system")


def test_the_quota_is_what_all_nodes_have_together() -> None:
    nodes, gpus = 20, 8
    queue = cluster_queue(nodes, gpus)
    (group,) = queue["spec"]["resourceGroups"]
    (flavor,) = group["flavors"]
    assert flavor["name"] == resource_flavor()["metadata"]["name"]
    assert local_queue()["spec"]["clusterQueue"] == queue["metadata"]["name"]
    quotas = {one["name"]: quantity(one["nominalQuota"]) for one in flavor["resources"]}
    assert list(quotas) == group["coveredResources"]
    node = node_manifest("node", gpus)["status"]["allocatable"]
    assert quotas == {name: nodes * (quantity(node[name]) or 0) for name in quotas}
    assert quotas.keys() == {"cpu", "memory", "nvidia.com/gpu"}


def test_a_job_of_kueue_is_a_plain_job_with_the_label_of_its_queue() -> None:
    job, plain = KUEUE_JOBS.manifest("a", 2), PLAIN_JOBS.manifest("a", 2)
    assert job["metadata"].pop("labels") == {
        "kueue.x-k8s.io/queue-name": local_queue()["metadata"]["name"]
    }
    assert job == plain
    assert KINDS["kueue"] is KUEUE_JOBS
    assert KUEUE_JOBS.resource == PLAIN_JOBS.resource


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        (["gpujobs"], []),
        (["gpujobs", "jobs"], ["ratio"]),
        (["gpujobs", "jobs", "kueue"], ["gpujobs / jobs", "gpujobs / kueue"]),
    ],
)
def test_a_ratio_is_named_where_there_are_several(kinds: list[str], wanted: list[str]) -> None:
    assert ratio_columns(kinds) == wanted


def row(kind: str, rate: float | None) -> dict[str, Any]:
    return {
        "kind": kind,
        "succeeded_per_second": rate,
        "cpu_milliseconds": {"etcd": rate},
        "peak_mib": {"etcd": 1.0},
        "writes_by_kind": {"pods": rate or 0.0},
    }


def test_the_first_of_three_kinds_is_divided_by_each_of_the_others() -> None:
    rows = [row("gpujobs", 40.0), row("jobs", 50.0), row("kueue", 10.0)]
    (rates,) = (one for one in figure_rows(rows) if one["figure"] == "succeeded_per_second")
    (cpu,), (writes,) = process_rows(rows), write_rows(rows)
    for found in (rates, cpu, writes):
        assert (found["gpujobs / jobs"], found["gpujobs / kueue"]) == (0.8, 4.0)
        assert "ratio" not in found
    assert ratios(rows)["gpujobs / kueue"] == {"succeeded_per_second": 4.0}


def test_a_ratio_without_a_figure_is_left_out() -> None:
    rows = [row("gpujobs", 40.0), row("jobs", 0.0), row("kueue", None)]
    (rates,) = (one for one in figure_rows(rows) if one["figure"] == "succeeded_per_second")
    assert rates.keys() == {"figure", "gpujobs", "jobs", "kueue"}
    assert ratios(rows) == {"gpujobs / jobs": {}, "gpujobs / kueue": {}}
    assert ratios(rows[:1]) == {}


def test_the_ratio_of_two_kinds_has_their_names_in_the_last_line() -> None:
    found = ratios([row("gpujobs", 40.0), row("jobs", 50.0)])
    assert found == {"gpujobs / jobs": {"succeeded_per_second": 0.8}}
