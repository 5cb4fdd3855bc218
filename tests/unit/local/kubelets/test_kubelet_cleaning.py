"""What is left of a cluster of kubelets is found by its record, and removed with nothing else."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpujob_local.cluster.state import StateError
from gpujob_local.control_plane.control_plane import ClusterError
from gpujob_local.kubelets import cgroups, cleaning, commands
from gpujob_local.kubelets.record import (
    Record,
    kernel_settings,
    process_identity,
    restore_settings,
    settings_before,
)

# This very process number, started at another time.
NOBODY = (os.getpid(), 1)
MARKER = "GPUJOB_LOCAL_CLUSTER=nobody-has-this"

MOUNTINFO = """\
22 1 254:0 / / rw - ext4 /dev/root rw
90 22 0:50 / /clusters/one/nodes/node-1/kubelet/pods/a/volumes/token rw - tmpfs tmpfs rw
91 22 254:0 /home /clusters/one/nodes/node-1/a\\040b rw - ext4 /dev/root rw
92 90 0:51 / /clusters/one/nodes/node-1/kubelet/pods/a/volumes/token/below rw - tmpfs tmpfs rw
93 22 0:52 / /clusters/one-more/nodes rw - tmpfs tmpfs rw
"""


@pytest.fixture
def record(tmp_path: Path) -> Record:
    directory = tmp_path / "one"
    directory.mkdir()
    made = Record(str(directory), NOBODY, MARKER, ("/gpujob-none",), {})
    made.write()
    return made


def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    assert Record.read(Path(record.directory)) == record
    assert Record.read(Path(record.directory).parent) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"marker": 1}'])
def test_another_file_of_that_name_is_refused_by_name(record: Record, text: str) -> None:
    path = Path(record.directory) / "kubelets.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"kubelets\.json is not a record"):
        Record.read(Path(record.directory))


def test_mounts_in_a_clusters_folder_are_found_deepest_first() -> None:
    folder = "/clusters/one/nodes/node-1"
    assert cleaning.mounts_below(Path("/clusters/one"), MOUNTINFO) == [
        f"{folder}/kubelet/pods/a/volumes/token/below",
        f"{folder}/kubelet/pods/a/volumes/token",
        f"{folder}/a b",
    ]


def test_nothing_is_removed_while_something_is_mounted_there(
    record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is behind a mount may be somebody's data."""
    mounted = Path(record.directory) / "volume"
    mounted.mkdir()
    (mounted / "data").touch()
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"90 22 254:0 / {mounted} rw - ext4 /dev/root rw\n")
    monkeypatch.setattr(cleaning, "MOUNTS", mountinfo)
    with pytest.raises(ClusterError, match=rf"cannot unmount {mounted}"):
        cleaning.clean(record)
    assert (mounted / "data").exists()
    assert Record.read(Path(record.directory)) == record, "for the next try"


def test_cleaning_removes_the_folder_and_may_be_repeated(record: Record) -> None:
    (Path(record.directory) / "nodes" / "node-1").mkdir(parents=True)
    assert commands.clean_leftovers(Path(record.directory))
    assert not Path(record.directory).exists()
    assert not commands.clean_leftovers(Path(record.directory))
    cleaning.clean(record)


def test_a_cluster_whose_owner_lives_is_left_alone(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = replace(record, owner=process_identity(os.getpid()))
    owned.write()
    with pytest.raises(StateError, match="is up, starting or ending"):
        commands.clean_leftovers(Path(record.directory))

    def in_use(_directory: Path) -> bool:
        return True

    # A process that is named like a dead owner is another one.
    record.write()
    monkeypatch.setattr(commands, "in_use", in_use)
    with pytest.raises(StateError, match="is up, starting or ending"):
        commands.clean_leftovers(Path(record.directory))
    assert Path(record.directory).exists()


def test_kernel_settings_are_put_back_as_they_were(tmp_path: Path) -> None:
    for name, value in {"vm/overcommit_memory": "0\n", "kernel/panic": "1\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(value)
    before = kernel_settings(tmp_path)
    assert before == {"vm/overcommit_memory": "0", "kernel/panic": "1"}
    (tmp_path / "vm/overcommit_memory").write_text("1\n")
    restore_settings(before | {"kernel/not-on-this-machine": "1"}, tmp_path)
    assert kernel_settings(tmp_path) == before


def test_the_last_cluster_that_goes_puts_the_machines_own_settings_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: list[Mapping[str, str]] = []
    monkeypatch.setattr(cleaning, "restore_settings", restored.append)
    own = {"kernel/panic": "1"}
    made: list[Record] = []
    for name in ("first", "second"):
        directory = tmp_path / name
        directory.mkdir()
        # The second one finds what a kubelet of the first one has set.
        settings = own if name == "first" else settings_before(directory, tmp_path)
        made.append(Record(str(directory), NOBODY, MARKER, (), settings))
        made[-1].write()
    assert made[1].settings == own
    cleaning.clean(made[0])
    assert restored == []
    cleaning.clean(made[1])
    assert restored == [own]


def version_1(root: Path) -> Path:
    for name in ("cpuset", "memory"):
        (root / name).mkdir(parents=True)
        (root / name / "cgroup.procs").write_text("")
    (root / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (root / "cpuset" / "cpuset.mems").write_text("0\n")
    (root / "not-a-hierarchy").mkdir()
    return root


def test_a_nodes_group_is_made_in_every_hierarchy_with_its_processors(tmp_path: Path) -> None:
    root = version_1(tmp_path)
    cgroups.make("/gpujob-one-node-1", root)
    assert (root / "cpuset/gpujob-one-node-1/cpuset.cpus").read_text() == "0-1\n"
    assert (root / "cpuset/gpujob-one-node-1/cpuset.mems").read_text() == "0\n"
    assert (root / "memory/gpujob-one-node-1").is_dir()
    assert not (root / "not-a-hierarchy/gpujob-one-node-1").exists()


def test_with_version_2_the_controllers_are_handed_down(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "gpujob-one-node-1").mkdir()
    (tmp_path / "gpujob-one-node-1" / "cgroup.controllers").write_text("cpu memory\n")
    cgroups.make("/gpujob-one-node-1", tmp_path)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +cpuset +memory +pids"
    inner = tmp_path / "gpujob-one-node-1" / "cgroup.subtree_control"
    assert inner.read_text() == "+cpu +memory"


def test_processes_of_a_node_are_those_of_its_group_and_below(tmp_path: Path) -> None:
    root = version_1(tmp_path)
    below = root / "memory" / "gpujob-one-node-1" / "kubepods" / "pod1"
    below.mkdir(parents=True)
    (below / "cgroup.procs").write_text("11\n12\n")
    (root / "memory" / "gpujob-one-node-1" / "cgroup.procs").write_text("13\n")
    (root / "memory" / "cgroup.procs").write_text("14\n")
    assert cgroups.processes("/gpujob-one-node-1", root) == {11, 12, 13}


def test_a_group_that_is_empty_is_removed_with_those_below(tmp_path: Path) -> None:
    root = tmp_path
    for name in ("cpuset", "memory"):
        (root / name).mkdir()
        (root / name / "cgroup.procs").write_text("")
        # As in the kernel's file system, the groups have no files of their own to remove.
        (root / name / "gpujob-one-node-1" / "kubepods").mkdir(parents=True)
    assert cgroups.remove("/gpujob-one-node-1", root) == []
    assert not list(root.glob("*/gpujob-one-node-1"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("kubelet", 2), ("kubelet:3", 3), ("3", None), ("kubelets", None), ("kubelet:", None)],
)
def test_nodes_are_a_number_or_kubelets(text: str, wanted: int | None) -> None:
    assert commands.kubelets_wanted(text) == wanted
