"""Kubeconfigs are read back and private; ports are free."""

from pathlib import Path

import pytest

from gpujob_local.control_plane.identity import Identity
from gpujob_local.control_plane.ports import free_port


def test_kubeconfigs_are_read_back_and_private(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    for identity in (
        Identity("https://a:1", authority, token="secret"),
        Identity("https://a:1", authority, certificate=tmp_path / "c", key=tmp_path / "k"),
    ):
        path = identity.write_kubeconfig(tmp_path / "kubeconfig")
        assert Identity.read_kubeconfig(path) == identity
        assert path.stat().st_mode & 0o077 == 0
    (tmp_path / "other").write_text("clusters: []")
    with pytest.raises(ValueError, match="other is not a kubeconfig"):
        Identity.read_kubeconfig(tmp_path / "other")


def test_ports_are_free_and_not_those_of_passing_connections() -> None:
    ports = {free_port() for _ in range(20)}
    assert all(20000 <= port <= 32000 for port in ports)
    assert len(ports) > 1
