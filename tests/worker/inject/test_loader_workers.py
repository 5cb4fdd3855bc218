"""How many processes may load data: what this process may use, not what the machine has."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpujob_worker.inject.loader_workers import Machine, busy_cores, cores_here, workers_wanted

pytestmark = pytest.mark.any_torch


def machine(tmp_path: Path, files: dict[str, str], cores: int = 16, parent: int = 16) -> Machine:
    """A machine whose files lie in a folder; this process may use `cores`, its parent `parent`."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    affinity: Callable[[int], set[int]] = lambda pid: set(range(parent if pid else cores))  # noqa: E731
    return Machine(tmp_path / "sys", tmp_path / "proc", affinity)


SECOND = {"proc/self/cgroup": "0::/pods/mine\n"}
FIRST = {"proc/self/cgroup": "5:memory:/pods/mine\n4:cpu,cpuacct:/pods/mine\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16.0),
        (SECOND, 16.0),
        ({**SECOND, "sys/pods/mine/cpu.max": "max 100000\n"}, 16.0),
        ({**SECOND, "sys/pods/mine/cpu.max": "250000 100000\n"}, 2.5),
        # The tightest of all groups above holds.
        ({**SECOND, "sys/pods/mine/cpu.max": "800000 100000", "sys/pods/cpu.max": "3 1"}, 3.0),
        # A container sees its own group as the root.
        ({**SECOND, "sys/cpu.max": "200000 100000\n"}, 2.0),
        ({**SECOND, "sys/unified/pods/mine/cpu.max": "200000 100000\n"}, 2.0),
        ({**SECOND, "sys/pods/mine/cpu.max": "nonsense"}, 16.0),
        (
            {
                **FIRST,
                "sys/cpu,cpuacct/pods/mine/cpu.cfs_quota_us": "150000\n",
                "sys/cpu,cpuacct/pods/mine/cpu.cfs_period_us": "50000\n",
            },
            3.0,
        ),
        (
            {
                **FIRST,
                "sys/cpu/cpu.cfs_quota_us": "100000\n",
                "sys/cpu/cpu.cfs_period_us": "100000\n",
            },
            1.0,
        ),
        (
            {
                **FIRST,
                "sys/cpu/pods/mine/cpu.cfs_quota_us": "-1\n",
                "sys/cpu/pods/mine/cpu.cfs_period_us": "100000\n",
            },
            16.0,
        ),
    ],
)
def test_a_quota_bounds_the_cores(files: dict[str, str], expected: float, tmp_path: Path) -> None:
    assert cores_here({}, machine(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("processes", "cores", "parent", "expected"),
    [
        ("4", 16, 16, 4.0),
        # torchrun's processes bound to cores of their own share nothing.
        ("4", 4, 16, 4.0),
        ("4", 4, 4, 1.0),
        ("bad", 16, 16, 16.0),
        ("0", 16, 16, 16.0),
    ],
)
def test_processes_of_a_node_share_its_cores(
    processes: str, cores: int, parent: int, expected: float, tmp_path: Path
) -> None:
    environment = {"LOCAL_WORLD_SIZE": processes}
    assert cores_here(environment, machine(tmp_path, {}, cores, parent)) == expected


def test_a_quota_is_shared_also_by_processes_bound_to_cores(tmp_path: Path) -> None:
    files = {**SECOND, "sys/pods/mine/cpu.max": "400000 100000"}
    bound = machine(tmp_path, files, cores=4, parent=16)
    assert cores_here({"LOCAL_WORLD_SIZE": "4"}, bound) == 1.0


@pytest.mark.parametrize(("cores", "expected"), [(1, 0), (2, 1), (4, 3), (64, 16)])
def test_one_core_is_the_training_processs(cores: int, expected: int, tmp_path: Path) -> None:
    assert workers_wanted({}, machine(tmp_path, {}, cores, cores)) == expected


PRESSURE = "some avg10={} avg60=1.00 avg300=1.00 total=5\nfull avg10=0.00 avg60=0.00\n"


def test_loaded_cores_are_seen(tmp_path: Path) -> None:
    own = {**SECOND, "sys/pods/mine/cpu.pressure": PRESSURE.format("80.50")}
    assert "waits for a core 80 % of the time" in (busy_cores(machine(tmp_path, own)) or "")
    quiet = {**SECOND, "sys/pods/mine/cpu.pressure": PRESSURE.format("12.00")}
    assert busy_cores(machine(tmp_path, quiet)) is None


def test_the_whole_nodes_load_counts_where_all_of_it_may_be_used(tmp_path: Path) -> None:
    busy = {"proc/pressure/cpu": PRESSURE.format("99.00")}
    assert busy_cores(machine(tmp_path, busy, cores=10_000)) is not None
    # One core of a node's many: what waits may wait for the others.
    assert busy_cores(machine(tmp_path, busy, cores=0)) is None
    assert busy_cores(machine(tmp_path / "other", {"proc/pressure/cpu": "none"}, 10_000)) is None
