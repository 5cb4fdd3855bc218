"""The requirements of real kubelets on this machine, and texts about missing ones."""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# The purpose of each program, and the Debian package that has it.
PROGRAMS: Mapping[str, tuple[str, str]] = {
    "ip": ("links the nodes' networks", "iproute2"),
    "iptables": ("rules for Services and NetworkPolicies", "iptables"),
    "mount": ("each node's own /run and /var", "mount"),
    "nsenter": ("starts programs in a node's namespaces", "util-linux"),
    "runc": ("runs containers", "runc"),
    "unshare": ("makes a node's namespaces", "util-linux"),
    "debootstrap": ("makes the images' root file system", "debootstrap"),
    "tar": ("packs the images' layers", "tar"),
}
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("bridge", "host-local", "loopback")
CNI_PACKAGE = "containernetworking-plugins"
BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that decide whether kubelets can run here."""

    platform: str
    user: int
    missing_programs: tuple[str, ...]
    cni_folder: Path | None
    cgroups: Path
    filters_bridges: bool = True

    @classmethod
    def look(cls) -> "Machine":
        # /usr/sbin is not on every user's path, and some of the programs are there.
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        return cls(
            platform=sys.platform,
            user=os.getuid(),
            missing_programs=tuple(name for name in PROGRAMS if not shutil.which(name, path=path)),
            cni_folder=cni_folder(CNI_FOLDERS),
            cgroups=Path("/sys/fs/cgroup"),
            filters_bridges=BRIDGE_FILTER.is_file(),
        )


def cni_folder(folders: tuple[Path, ...]) -> Path | None:
    """Returns the first folder that has every network plugin that a node uses, or None."""
    for folder in folders:
        if all((folder / plugin).is_file() for plugin in CNI_PLUGINS):
            return folder
    return None


def refusal(machine: Machine) -> str | None:
    """Returns why kubelets cannot run on a machine and what to do about it, or None if they can."""
    if machine.platform != "linux":
        return f"real kubelets need Linux; this is {machine.platform}"
    if machine.user != 0:
        return (
            f"real kubelets need root, for namespaces, mounts and cgroups; this is user "
            f"{machine.user}. Without root: `gpujob-local up` with process nodes"
        )
    if missing := _missing(machine):
        packages = " ".join(sorted({package for _, package in missing}))
        return (
            f"missing: {'; '.join(text for text, _ in missing)}. "
            f"On Debian and Ubuntu: apt-get install {packages}"
        )
    if not machine.cgroups.is_dir():
        return f"real kubelets need cgroups; there are none at {machine.cgroups}"
    return None


def without_policies(machine: Machine) -> str | None:
    """Returns why no NetworkPolicy is enforced between kubelets' pods here, or None."""
    if machine.filters_bridges:
        return None
    return (
        f"no NetworkPolicy is enforced: {BRIDGE_FILTER} is missing, without which the kernel does "
        f"not show iptables what goes from pod to pod on one node. Mostly: modprobe br_netfilter"
    )


def _missing(machine: Machine) -> list[tuple[str, str]]:
    found = [
        (f"{name} ({PROGRAMS[name][0]})", PROGRAMS[name][1]) for name in machine.missing_programs
    ]
    if machine.cni_folder is None:
        plugins, folders = ", ".join(CNI_PLUGINS), " or ".join(map(str, CNI_FOLDERS))
        found.append((f"the CNI plugins {plugins} in {folders} (pods' networks)", CNI_PACKAGE))
    return found
