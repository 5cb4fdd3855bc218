"""Whose pod a process is, by its cgroup, as every runtime and cgroup driver lays it out."""

import pytest

from gpujob_operator.agent.owners import pod_uid_in_cgroup

UID = "1a2b3c4d-0123-4567-89ab-0123456789ab"
SLICE_UID = UID.replace("-", "_")
CONTAINER = "9" * 64
STATIC = "0123456789abcdef0123456789abcdef"

PODS = {
    "containerd, systemd, v2": f"0::/kubepods.slice/kubepods-burstable.slice/"
    f"kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{CONTAINER}.scope",
    "containerd, systemd, v2, guaranteed": f"0::/kubepods.slice/kubepods-pod{SLICE_UID}.slice/"
    f"cri-containerd-{CONTAINER}.scope",
    "containerd, cgroupfs, v2": f"0::/kubepods/besteffort/pod{UID}/{CONTAINER}",
    "containerd, cgroupfs, v2, guaranteed": f"0::/kubepods/pod{UID}/{CONTAINER}",
    "containerd, cgroupfs, v1": f"12:cpu,cpuacct:/kubepods/burstable/pod{UID}/{CONTAINER}\n"
    f"11:memory:/kubepods/burstable/pod{UID}/{CONTAINER}\n1:name=systemd:/",
    "containerd, systemd, v1": "12:pids:/\n11:memory:/system.slice/containerd.service/"
    f"kubepods-besteffort-pod{SLICE_UID}.slice:cri-containerd:{CONTAINER}",
    "CRI-O, systemd, v2": f"0::/kubepods.slice/kubepods-besteffort.slice/"
    f"kubepods-besteffort-pod{SLICE_UID}.slice/crio-{CONTAINER}.scope",
    "CRI-O, systemd, v2, a cgroup inside": f"0::/kubepods.slice/kubepods-besteffort.slice/"
    f"kubepods-besteffort-pod{SLICE_UID}.slice/crio-{CONTAINER}.scope/container",
    "CRI-O, cgroupfs, v1": f"9:memory:/kubepods/burstable/pod{UID}/crio-{CONTAINER}",
    "Docker, systemd, v2": f"0::/kubepods.slice/kubepods-pod{SLICE_UID}.slice/"
    f"docker-{CONTAINER}.scope",
    "kind, v2": "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
    f"kubelet-kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{CONTAINER}.scope",
    "kind, v1": f"7:memory:/docker/{CONTAINER}/kubelet/kubepods/burstable/pod{UID}/{CONTAINER}",
    # With a cgroup namespace of its own, as with v2, a reader sees others from where it stands.
    "seen from another pod, systemd": f"0::/../../kubepods-besteffort-pod{SLICE_UID}.slice/"
    f"cri-containerd-{CONTAINER}.scope",
    "seen from another pod, cgroupfs": f"0::/../../../besteffort/pod{UID}/{CONTAINER}",
    "seen from a pod of the same class": f"0::/../../pod{UID}/{CONTAINER}",
    "below a cgroup root of the kubelet": f"0::/e2e-node1/kubepods/besteffort/pod{UID}/{CONTAINER}",
}
NOBODY = {
    "the reader's own": "0::/",
    "the node's": "0::/system.slice/kubelet.service",
    "a podman container": f"0::/machine.slice/libpod-{CONTAINER}.scope",
    "a container with a name like a pod's": f"0::/docker/tripod{UID}/x",
    "a slice of no pod": "0::/kubepods.slice/kubepods-burstable.slice",
    "too short": "0::/kubepods/besteffort/pod1a2b3c4d/x",
    "empty": "",
}


@pytest.mark.parametrize("text", PODS.values(), ids=list(PODS))
def test_a_process_of_a_pod_is_found(text: str) -> None:
    assert pod_uid_in_cgroup(f"{text}\n") == UID


def test_a_static_pod_has_a_hash_for_its_uid() -> None:
    assert pod_uid_in_cgroup(f"0::/kubepods/burstable/pod{STATIC}/{CONTAINER}") == STATIC


@pytest.mark.parametrize("text", NOBODY.values(), ids=list(NOBODY))
def test_what_is_in_no_pod_is_nobodys(text: str) -> None:
    assert pod_uid_in_cgroup(f"{text}\n") is None
