"""Small pieces of a process node: its configuration, volumes for claims, tails of logs."""

from pathlib import Path

import pytest

from gpujob_local.kubelet.node_server import _tail_offset
from gpujob_local.kubelet.process_node import NodeConfiguration
from gpujob_local.kubelet.storage import volume_for


def test_node_configuration_is_read_back() -> None:
    fields = ("name", "kubeconfig", "folder", "shared", "cards", "crt", "key", "127.9")
    configuration = NodeConfiguration(*fields, labels={"a": "b"})
    assert NodeConfiguration.from_text(configuration.to_text()) == configuration


def test_a_volume_is_made_for_pending_claims_of_our_class_only(tmp_path: Path) -> None:
    spec = {
        "storageClassName": "local",
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    metadata = {"name": "c", "namespace": "n", "uid": "u"}
    claim = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
    volume = volume_for(claim, tmp_path)
    assert volume is not None
    assert volume["spec"]["hostPath"]["path"] == str(tmp_path / "pvc-u")
    assert volume["spec"]["claimRef"]["uid"] == "u"
    assert volume_for(claim | {"status": {"phase": "Bound"}}, tmp_path) is None
    assert volume_for(claim | {"spec": spec | {"volumeName": "v"}}, tmp_path) is None
    assert volume_for(claim | {"spec": spec | {"storageClassName": "other"}}, tmp_path) is None


@pytest.mark.parametrize(
    ("content", "lines", "kept"),
    [
        (b"a\nb\nc\n", "2", b"b\nc\n"),
        (b"a\nb\nc", "1", b"c"),
        (b"a\nb\n", "9", b"a\nb\n"),
        (b"a\nb\n", "0", b""),
        (b"", "3", b""),
        (b"x" * 100_000 + b"\nlast\n", "1", b"last\n"),
        (b"a\nb\n", None, b"a\nb\n"),
    ],
)
def test_the_tail_of_a_log(tmp_path: Path, content: bytes, lines: str | None, kept: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert content[_tail_offset(path, lines) :] == kept
