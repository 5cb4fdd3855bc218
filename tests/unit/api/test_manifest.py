"""Whole Kubernetes objects to nouns and back."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.gpuservice import GPUService
from gpujob_api.manifest import (
    RESOURCES,
    from_manifest,
    gpujob_from_manifest,
    gpunode_from_manifest,
    gpuprofile_from_manifest,
    gpuqueue_from_manifest,
    metadata_from_manifest,
    metadata_to_manifest,
    to_manifest,
)
from gpujob_api.meta import Metadata, OwnerReference
from tests.harness.nouns import nouns

KINDS: tuple[type[Any], ...] = (GPUJob, GPUNode, GPUQueue, GPUProfile, GPUService)
JOB: dict[str, Any] = {
    "apiVersion": "gpujob.dev/v1alpha1",
    "kind": "GPUJob",
    "metadata": {
        "name": "resnet50",
        "namespace": "vision",
        "uid": "u-1",
        "resourceVersion": "42",
        "generation": 3,
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "deletionTimestamp": "2026-01-02T04:00:00Z",
        "labels": {"team": "vision"},
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": "sweep",
                "uid": "u-0",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {"template": {"spec": {"containers": [{"name": "worker"}]}}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_survives(kind: type[Any]) -> None:
    @settings(max_examples=25)
    @given(nouns(kind))
    def survive(noun: Any) -> None:
        manifest = to_manifest(noun)
        assert manifest["kind"] == RESOURCES[kind].kind
        assert from_manifest(kind, manifest) == noun

    survive()


def test_metadata_is_read_as_the_api_server_writes_it() -> None:
    metadata = gpujob_from_manifest(JOB).metadata
    assert metadata == Metadata(
        name="resnet50",
        namespace="vision",
        uid="u-1",
        resource_version="42",
        generation=3,
        creation_timestamp=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        deletion_timestamp=datetime(2026, 1, 2, 4, 0, 0, tzinfo=UTC),
        labels={"team": "vision"},
        owner_references=(OwnerReference("v1", "ConfigMap", "sweep", "u-0", True),),
    )


def test_what_is_empty_is_left_for_the_api_server_to_fill() -> None:
    assert metadata_to_manifest(Metadata("a")) == {"name": "a"}
    assert metadata_from_manifest({"name": "a"}) == Metadata("a")


def test_the_kinds_without_required_fields() -> None:
    assert gpunode_from_manifest({"metadata": {"name": "node-a"}}).status.gpus == ()
    assert gpuqueue_from_manifest({"metadata": {"name": "default"}}).spec.weight == 1


def test_an_object_without_its_kind_is_trusted_because_lists_leave_it_out() -> None:
    bare = {name: JOB[name] for name in ("metadata", "spec")}
    assert gpujob_from_manifest(bare).metadata.name == "resnet50"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "GPUNode"}, "kind"),
        ({"apiVersion": "batch/v1"}, "apiVersion"),
        ({"metadata": {}}, "metadata.name"),
        ({"metadata": None}, "metadata.name"),
        ({"metadata": {"name": 7}}, "metadata.name"),
        ({"metadata": {"name": "a", "creationTimestamp": "soon"}}, "metadata.creationTimestamp"),
        ({"metadata": {"name": "a", "ownerReferences": [{}]}}, "metadata.ownerReferences[0]"),
        ({"spec": None}, "spec.template"),
        ({"spec": []}, "spec.template"),
        ({"spec": "x"}, "spec"),
        ({"status": {"phase": "Dancing"}}, "status.phase"),
        ({"status": {"attempt": -1}}, "status.attempt"),
        ({"status": {"conditions": [{"type": "Ready"}]}}, "status.conditions[0].status"),
    ],
)
def test_errors_name_the_field_by_its_path(change: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        gpujob_from_manifest(JOB | change)
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize("data", [None, [], "x", 7])
def test_what_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(FieldError, match="GPUProfile: must be an object"):
        gpuprofile_from_manifest(data)


def test_a_queue_is_not_its_own_parent() -> None:
    with pytest.raises(FieldError) as caught:
        gpuqueue_from_manifest({"metadata": {"name": "a"}, "spec": {"parent": "a"}})
    assert caught.value.field == "spec.parent"


@pytest.mark.parametrize(
    ("gpu", "field"),
    [
        ({"uuid": "0"}, "uuid"),
        ({"memoryUsedBytes": 11}, "memoryUsedBytes"),
        ({"memoryTotalBytes": 0}, "memoryTotalBytes"),
        ({"utilizationPercent": 100.1}, "utilizationPercent"),
        ({"temperatureCelsius": -300}, "temperatureCelsius"),
        ({"processes": [{"pid": -1, "memoryBytes": 0}]}, "processes[0].pid"),
    ],
)
def test_absurd_gpus_are_refused(gpu: dict[str, Any], field: str) -> None:
    sane = {"uuid": "GPU-a", "index": 0, "model": "H100"}
    sane |= {"memoryTotalBytes": 10, "memoryUsedBytes": 1}
    node = {"metadata": {"name": "node-a"}, "status": {"gpus": [sane | gpu]}}
    with pytest.raises(FieldError) as caught:
        gpunode_from_manifest(node)
    assert caught.value.field == f"status.gpus[0].{field}"


def test_two_gpus_with_one_identity_are_refused() -> None:
    gpu = {"uuid": "GPU-a", "index": 0, "model": "H100"}
    gpu |= {"memoryTotalBytes": 10, "memoryUsedBytes": 1}
    with pytest.raises(FieldError, match=r"status\.gpus: has two entries with the same uuid"):
        gpunode_from_manifest({"metadata": {"name": "a"}, "status": {"gpus": [gpu, gpu]}})
