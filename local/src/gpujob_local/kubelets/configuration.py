"""The configuration files of a node's programs, as data. Pure: nothing here touches the machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpujob_local.images.recipes import PAUSE_IMAGE, SHARED_PACKAGES_MOUNT
from gpujob_local.kubelets.options import DNS_ADDRESS, POD_NETWORK, NodePlan

Json = dict[str, Any]


def containerd_configuration(folder: Path, cni_folder: Path) -> Json:
    """Returns a configuration with the node's own root, state and sockets. Its runtime is runc with
    the node's base spec.
    """
    runc = {
        "runtime_type": "io.containerd.runc.v2",
        "base_runtime_spec": str(specification_file(folder)),
        "options": {"SystemdCgroup": False},
    }
    runtime = {
        # Neither is available in every container that is used as a build machine.
        "restrict_oom_score_adj": True,
        "disable_apparmor": True,
        "netns_mounts_under_state_dir": True,
        "containerd": {"default_runtime_name": "runc", "runtimes": {"runc": runc}},
        "cni": {"bin_dirs": [str(cni_folder)], "conf_dir": str(folder / "cni")},
    }
    images = {"snapshotter": "overlayfs", "pinned_images": {"sandbox": PAUSE_IMAGE}}
    return {
        "version": 3,
        "root": str(folder / "containerd" / "root"),
        "state": str(folder / "containerd" / "state"),
        "grpc": {"address": str(containerd_socket(folder))},
        "ttrpc": {"address": f"{containerd_socket(folder)}.ttrpc"},
        "plugins": {"io.containerd.cri.v1.images": images, "io.containerd.cri.v1.runtime": runtime},
    }


def containerd_socket(folder: Path) -> Path:
    return folder / "containerd.sock"


def specification_file(folder: Path) -> Path:
    return folder / "container.json"


def to_toml(value: Mapping[str, Any], path: Sequence[str] = ()) -> str:
    """Returns nested tables of strings, numbers, booleans and lists of strings as TOML."""
    lines = [
        f"{key} = {_scalar(item)}" for key, item in value.items() if not isinstance(item, dict)
    ]
    if path and lines:
        lines.insert(0, "[" + ".".join(f"'{part}'" for part in path) + "]")
    tables = [to_toml(item, (*path, key)) for key, item in value.items() if isinstance(item, dict)]
    return "\n".join([*lines, *tables])


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    return f"'{value}'" if isinstance(value, str) else str(value)


def container_specification(default: Json, shared_packages: Path) -> Json:
    """Returns the base of every container's specification, with the mounts that all containers
    have.

    torch is shared with the machine instead of copied into an image and from there to every node.
    """
    mount = {
        "destination": SHARED_PACKAGES_MOUNT,
        "type": "bind",
        "source": str(shared_packages),
        "options": ["rbind", "ro"],
    }
    return default | {"mounts": [*default["mounts"], mount]}


def network_configuration(plan: NodePlan, folder: Path) -> Json:
    """Returns one bridge per node. The hub routes each node's range, so no address is
    translated.
    """
    addresses = {
        "type": "host-local",
        "dataDir": str(folder / "addresses"),
        "ranges": [[{"subnet": plan.pod_range}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": addresses,
    }
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def kubelet_configuration(
    plan: NodePlan, folder: Path, authority: Path, serving: tuple[Path, Path], lease_seconds: int
) -> Json:
    """Returns the settings. The API server authenticates and authorizes, as kubeadm sets it up."""
    certificate, key = serving
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "address": plan.address,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": plan.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "containerRuntimeEndpoint": f"unix://{containerd_socket(folder)}",
        "podLogsDir": str(folder / "pod-logs"),
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "nodeLeaseDurationSeconds": lease_seconds,
        # The disk is the machine's, and images cannot be pulled again.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
    }


def proxy_configuration(plan: NodePlan, kubeconfig: Path) -> Json:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": POD_NETWORK,
        "hostnameOverride": plan.name,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        # These are the machine's settings, not the node's.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }
