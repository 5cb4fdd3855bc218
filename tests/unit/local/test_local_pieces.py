"""Small pure pieces of the local cluster: names, options, volumes, log tails, launching."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpujob_local import launch
from gpujob_local.cluster_nodes import make_cards
from gpujob_local.cluster_options import ClusterOptions, NodeOptions
from gpujob_local.identity import Identity
from gpujob_local.node_server import _tail_offset
from gpujob_local.owner import options_from_text, options_to_text
from gpujob_local.ports import free_port
from gpujob_local.process_node import NodeConfiguration
from gpujob_local.processes import launch_command
from gpujob_local.state import (
    ClusterState,
    StateError,
    cluster_directory,
    cluster_names,
    state_root,
)
from gpujob_local.storage import volume_for


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", "x" * 41, "caf\u00e9"])
def test_names_that_cannot_be_folders_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUJOB_LOCAL_STATE", str(tmp_path))
    with pytest.raises(StateError, match="--name must be"):
        cluster_directory(name)


def test_a_path_too_long_for_a_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUJOB_LOCAL_STATE", str(tmp_path / ("x" * 100)))
    with pytest.raises(StateError, match="too long a path"):
        cluster_directory("default")


def test_a_state_folder_that_is_a_link_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setenv("GPUJOB_LOCAL_STATE", str(tmp_path / "link"))
    with pytest.raises(StateError, match="not a folder of yours"):
        state_root()


def test_state_is_read_back_and_a_dead_owner_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUJOB_LOCAL_STATE", str(tmp_path))
    directory = cluster_directory("one")
    directory.mkdir()
    state = ClusterState("one", os.getpid(), "marker", str(directory), {"A": "1"})
    state.write()
    assert ClusterState.read("one") == state
    assert cluster_names() == ["one"]
    assert not state.alive()  # this process lives, but it is not an owner of that folder
    with pytest.raises(StateError, match=r"no cluster 'two' is running \(running: one\)"):
        ClusterState.read("two")


def test_options_survive_the_way_to_the_owner(tmp_path: Path) -> None:
    nodes = (NodeOptions("a", cards=1, spot=True, labels={"x": "y"}), NodeOptions("b"))
    options = ClusterOptions(nodes=nodes, images={"i:1": tmp_path}, operator_arguments=("--x",))
    assert options_from_text(options_to_text(options)) == options


def test_nonsense_options_are_refused() -> None:
    with pytest.raises(ValueError, match="node names must differ; got a, a"):
        ClusterOptions(nodes=(NodeOptions("a"), NodeOptions("a")))
    with pytest.raises(ValueError, match="cards must be 0 to 64; got 65"):
        NodeOptions("a", cards=65)
    with pytest.raises(ValueError, match="a card of 5 bytes cannot reserve"):
        ClusterOptions(card_bytes=5)


def test_cards_take_turns_on_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def cores(_pid: int) -> set[int]:
        return {4, 7}

    monkeypatch.setattr(os, "sched_getaffinity", cores)
    nodes = (NodeOptions("a", cards=1), NodeOptions("b.c", cards=2, card_bytes=10**9))
    options = ClusterOptions(nodes=nodes)
    first, second = make_cards(options, nodes[0]), make_cards(options, nodes[1])
    assert [card.core for card in (*first, *second)] == [4, 7, 4]
    assert len({card.uuid for card in (*first, *second)}) == 3
    assert second[0].uuid.startswith("CPU-b-c-0-")
    assert (first[0].memory_bytes, second[0].memory_bytes) == (2 * 1024**3, 10**9)


def test_node_configuration_is_read_back() -> None:
    fields = ("name", "kubeconfig", "folder", "shared", "cards", "crt", "key", "127.9")
    configuration = NodeConfiguration(*fields, labels={"a": "b"})
    assert NodeConfiguration.from_text(configuration.to_text()) == configuration


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


def test_ports_are_free_and_not_those_of_passing_connections() -> None:
    ports = {free_port() for _ in range(20)}
    assert all(20000 <= port <= 32000 for port in ports)
    assert len(ports) > 1


def test_launched_commands_keep_to_their_core_and_start_with_default_signals() -> None:
    core = min(os.sched_getaffinity(0))
    script = (
        "import os, signal; print(sorted(os.sched_getaffinity(0)));"
        "print(open('/proc/self/status').read().split('SigIgn:')[1].split()[0])"
    )
    command = launch_command([sys.executable, "-I", "-c", script], [core])
    # As a shell leaves them to what it starts in the background, and nohup.
    left = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in left}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    affinity, ignored = done.stdout.splitlines()
    assert affinity == f"[{core}]"
    # This Python ignores SIGPIPE and SIGXFSZ itself. Signals 32 and 33 belong to the C library,
    # which lets no program set them: whoever started the tests may have left them ignored.
    of_nobody = {signal.SIGPIPE, signal.SIGXFSZ, 32, 33}
    assert {number for number in range(1, 65) if int(ignored, 16) >> number - 1 & 1} <= of_nobody


def test_a_command_is_not_run_when_its_parent_is_gone_or_it_cannot_be_executed(
    tmp_path: Path,
) -> None:
    plain = [sys.executable, "-I", "-S", launch.__file__]
    touched = tmp_path / "touched"
    orphan = subprocess.run([*plain, "1", "-", "touch", str(touched)], check=False)
    assert (orphan.returncode, touched.exists()) == (launch.EXIT_PARENT_GONE, False)
    me = str(os.getpid())
    missing = subprocess.run([*plain, me, "-", "/no/such"], capture_output=True, check=False)
    assert missing.returncode == launch.EXIT_START_ERROR
    assert b"cannot execute /no/such" in missing.stderr
