"""One listing of the cluster gives the snapshot that the operator's cache gives."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from gpujob_api.codec import FieldError
from gpujob_api.meta import LABEL_MANAGED
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.read.configuration import configuration_from_text
from gpujob_operator.read.snapshot import Objects, snapshot_of
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, placed
from tests.harness.clocks import FakeClock
from tests.harness.manifests import (
    gpu_node_manifest,
    job_manifest,
    node_manifest,
    pod_manifest,
    volume_manifest,
)

Manifest = dict[str, Any]
CONFIGURATION = Configuration(restart_seconds=7.0)


def cluster() -> dict[Kind, list[Manifest]]:
    """Something of every kind, and of most kinds something that cannot be read."""
    job = placed(make_job())
    broken = job_manifest(make_job("broken"))
    broken["spec"]["workers"] = 0
    gpu_of_nobody = gpu_node_manifest("n1")
    gpu_of_nobody["status"]["gpus"][0]["memoryUsedBytes"] = -1
    queue = {"metadata": {"name": "vision", "uid": "q"}, "spec": {"nominal": {"gpus": 2}}}
    bad_queue = {"metadata": {"name": "bad", "uid": "b"}, "spec": {"weight": 0}}
    return {
        Kind.JOB: [job_manifest(job), broken],
        Kind.POD: [
            pod_manifest(job),
            pod_manifest(name="unmanaged", cpu="3", memory="2Gi"),
            pod_manifest(name="ended", cpu="4", phase="Succeeded"),
            pod_manifest(name="unbound", cpu="4", node=None),
        ],
        Kind.NODE: [
            node_manifest("n0"),
            node_manifest("n1", ready="False"),
            node_manifest("n2", labels={LABEL_MANAGED: ""}),
        ],
        Kind.GPU_NODE: [gpu_node_manifest("n0"), gpu_of_nobody],
        Kind.QUEUE: [queue, bad_queue],
        Kind.PROFILE: [{"metadata": {"name": "p", "namespace": "team", "uid": "p"}, "spec": {}}],
        Kind.VOLUME: [volume_manifest("a"), {"metadata": {"name": "nameless"}}],
    }


def listed(found: dict[Kind, list[Manifest]]) -> Snapshot:
    objects = Objects(
        jobs=found[Kind.JOB],
        gpu_nodes=found[Kind.GPU_NODE],
        queues=found[Kind.QUEUE],
        profiles=found[Kind.PROFILE],
        pods=found[Kind.POD],
        nodes=found[Kind.NODE],
        volumes=found[Kind.VOLUME],
    )
    return snapshot_of(objects, CONFIGURATION)


@pytest.mark.parametrize("label", ["true", "false"])
def test_a_listing_is_what_the_cache_would_have(label: str) -> None:
    found = cluster()
    found[Kind.NODE][0] = node_manifest("n0", labels={LABEL_MANAGED: label})
    cache = Cache(Dirty(), Metrics(), FakeClock().now)
    for kind, manifests in found.items():
        cache.resync(kind, manifests, "1")
    kept = cache.snapshot((), CONFIGURATION)
    seen = listed(found)
    # The cache notes when a reading arrived by its own clock; a listing has the agent's time.
    assert [(node.name, node.managed) for node in kept.nodes] == [
        ("n0", label == "true"),
        ("n1", True),
    ]
    times = {node.metadata.name: node.status.observed_at for node in seen.gpu_nodes}
    nodes = tuple(
        replace(node, status=replace(node.status, observed_at=times[node.metadata.name]))
        for node in kept.gpu_nodes
    )
    assert seen == replace(kept, gpu_nodes=nodes)


def test_free_is_what_bound_and_unfinished_pods_leave() -> None:
    n0, n1 = listed(cluster()).nodes
    assert (n0.cpu_milli_free, n0.memory_bytes_free) == (8000 - 1000 - 3000, (32 - 1 - 2) * 1024**3)
    assert (n1.cpu_milli_free, n1.ready) == (8000, False)


def test_what_cannot_be_read_is_left_out_and_a_bad_job_named() -> None:
    seen = listed(cluster())
    assert [job.metadata.name for job in seen.jobs] == ["job"]
    assert [(one.metadata.name, one.field) for one in seen.invalid_jobs] == [
        ("broken", "spec.workers")
    ]
    assert [queue.metadata.name for queue in seen.queues] == ["vision"]
    assert [volume.claim for volume in seen.volumes] == ["checkpoints"]
    assert [len(node.status.gpus) for node in seen.gpu_nodes] == [1, 0]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("restartSeconds: soon", "configuration.restartSeconds"),
        ("restartSecond: 1", "configuration.restartSecond"),
        ("- 1", "configuration"),
    ],
)
def test_a_bad_configuration_names_the_field(text: str, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        configuration_from_text(text)
    assert caught.value.field == field


def test_a_configuration_keeps_defaults_and_yaml_errors_are_told() -> None:
    assert configuration_from_text("restartSeconds: 7") == CONFIGURATION
    assert configuration_from_text("") == Configuration()
    with pytest.raises(yaml.YAMLError):
        configuration_from_text("{")
