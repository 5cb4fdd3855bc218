"""Where kubelets cannot run, the words say what is missing and what to do."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpujob_local.kubelets.requirements import (
    CNI_PLUGINS,
    PROGRAMS,
    Machine,
    cni_folder,
    refusal,
    without_policies,
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One that has everything."""
    return Machine("linux", 0, (), tmp_path, tmp_path)


def test_a_machine_that_has_everything_is_not_refused(machine: Machine) -> None:
    assert refusal(machine) is None


def test_another_system_is_refused_before_anything_else(machine: Machine) -> None:
    words = refusal(replace(machine, platform="darwin", user=501))
    assert words == "real kubelets need Linux; this is darwin"


def test_without_root_the_way_without_root_is_named(machine: Machine) -> None:
    words = refusal(replace(machine, user=1000)) or ""
    assert "need root" in words
    assert "user 1000" in words
    assert "`gpujob-local up` with process nodes" in words


def test_every_missing_program_is_named_with_its_use_and_its_package(machine: Machine) -> None:
    words = refusal(replace(machine, missing_programs=tuple(PROGRAMS), cni_folder=None)) or ""
    for name, (use, package) in PROGRAMS.items():
        assert f"{name} ({use})" in words
        assert package in words.partition("apt-get install ")[2].split()
    assert "containernetworking-plugins" in words
    assert all(plugin in words for plugin in CNI_PLUGINS)


def test_without_cgroups(machine: Machine, tmp_path: Path) -> None:
    words = refusal(replace(machine, cgroups=tmp_path / "nothing")) or ""
    assert "need cgroups" in words


def test_network_plugins_count_only_where_all_of_them_are(tmp_path: Path) -> None:
    some, all_of_them = tmp_path / "some", tmp_path / "all"
    for folder in (some, all_of_them):
        folder.mkdir()
    for plugin in CNI_PLUGINS:
        (all_of_them / plugin).touch()
    (some / CNI_PLUGINS[0]).touch()
    assert cni_folder((some,)) is None
    assert cni_folder((some, all_of_them)) == all_of_them


def test_this_machine_can_be_looked_at() -> None:
    assert Machine.look().user >= 0


def test_without_iptables_on_bridges_kubelets_run_and_policies_are_said_not_to(
    machine: Machine,
) -> None:
    assert without_policies(machine) is None
    less = replace(machine, filters_bridges=False)
    assert refusal(less) is None
    words = without_policies(less) or ""
    assert words.startswith("no NetworkPolicy is enforced")
    assert "modprobe br_netfilter" in words
