"""Who is told which port of an API server that runs in a network of its own."""

from pathlib import Path

from gpujob_local.control_plane.control_plane import LOOPBACK, ControlPlane, Place
from gpujob_local.control_plane.credentials import Authority
from gpujob_local.control_plane.identity import Identity


def servers(folder: Path, place: Place) -> dict[str, str]:
    control_plane = ControlPlane(folder, {}, "nobody", place=place)
    control_plane._authority = Authority(folder)  # pyright: ignore[reportPrivateUsage]
    control_plane._write_kubeconfigs()  # pyright: ignore[reportPrivateUsage]
    found = {
        name: Identity.read_kubeconfig(folder / f"{name}.kubeconfig").server
        for name in ("admin", "scheduler", "controller-manager")
    }
    return found | {"node": control_plane.certificate_identity("node", "system:node:one").server}


def test_people_come_through_the_port_outside_and_all_others_to_the_one_inside(
    tmp_path: Path,
) -> None:
    assert servers(tmp_path, Place(("enter",), ("10.199.0.1",), 20001, 6443)) == {
        "admin": "https://127.0.0.1:20001",
        "scheduler": "https://127.0.0.1:6443",
        "controller-manager": "https://127.0.0.1:6443",
        "node": "https://10.199.0.1:6443",
    }


def test_on_loopback_there_is_one_port(tmp_path: Path) -> None:
    assert len(set(servers(tmp_path, LOOPBACK).values())) == 1
