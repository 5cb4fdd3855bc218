"""Where named clusters live: names, folders, what their owner wrote down."""

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpujob_local.cluster.state import (
    ClusterState,
    StateError,
    ask_owner,
    cluster_directory,
    cluster_names,
    socket_path,
    state_root,
)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", "x" * 41, "caf\u00e9"])
def test_names_that_cannot_be_folders_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUJOB_LOCAL_STATE", str(tmp_path))
    with pytest.raises(StateError, match="--name must be"):
        cluster_directory(name)


def test_an_owner_is_asked_however_long_the_path_to_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUJOB_LOCAL_STATE", str(tmp_path / ("caf\u00e9 " * 40)))
    directory = cluster_directory("default")
    directory.mkdir()
    ClusterState("default", os.getpid(), "marker", str(directory), {}).write()
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as owner:
        with socket_path(directory) as path:
            listener.bind(path)
        listener.listen()
        asked = owner.submit(answer_once, listener)
        assert ask_owner("default", "status") == "well"
        assert asked.result() == {"command": "status"}


def answer_once(listener: socket.socket) -> object:
    connection, _ = listener.accept()
    with connection, connection.makefile("rwb") as stream:
        asked = json.loads(stream.readline())
        stream.write(b'{"result": "well"}\n')
    return asked


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
