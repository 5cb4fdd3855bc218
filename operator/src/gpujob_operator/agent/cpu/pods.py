"""Reads which devices a process was given from its pod.

The cgroup of a process names its pod. The pod's object has the devices that its containers name in
NVIDIA_VISIBLE_DEVICES, as the NVIDIA container toolkit would read it. Neither needs rights over the
process.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gpujob_operator.agent.cpu.environment import VISIBLE_DEVICES, names_in
from gpujob_operator.agent.owners import OwnerOf
from gpujob_operator.client.kube import PODS, Kube

# A kubelet runs 110 pods by default.
PODS_REMEMBERED_MAX = 2048


class PodDevices:
    """Devices by pod. Every process of a pod counts on the devices that its containers name.

    `learn` reads pods that were not seen before from the API. A pod's devices never change. Calls
    in between are answered from memory, so a reading blocks on nothing.
    """

    def __init__(self, kube: Kube, node: str, owner: OwnerOf, proc: Path = Path("/proc")) -> None:
        self._kube = kube
        self._node = node
        self._owner = owner
        self._proc = proc
        self._devices: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def __call__(self, pid: int) -> tuple[str, ...]:
        uid = self._owner(pid)
        return self._devices.get(uid, ()) if uid is not None else ()

    async def learn(self) -> None:
        """Learns new pods. Call it before a reading.

        Raises `ApiError`, and then nothing is known about new pods.
        """
        unknown = await asyncio.to_thread(self._unknown)
        if not unknown:
            return
        selector = f"spec.nodeName={self._node}"
        listing = await self._kube.list(PODS, field_selector=selector, whole=True)
        found = dict(_devices(manifest) for manifest in listing.items)
        # A pod is in the API before its first process starts, so a missing pod will never appear.
        self._devices.update((uid, found.get(uid, ())) for uid in sorted(unknown))
        while len(self._devices) > PODS_REMEMBERED_MAX:
            self._devices.popitem(last=False)

    def _unknown(self) -> set[str]:
        owners = {self._owner(int(entry)) for entry in os.listdir(self._proc) if entry.isdigit()}
        known = owners & self._devices.keys()
        for uid in known:
            # Running pods must not be dropped in favor of ended ones.
            self._devices.move_to_end(cast("str", uid))
        return {uid for uid in owners if uid is not None} - known


def _devices(manifest: object) -> tuple[str, tuple[str, ...]]:
    """Returns a pod's UID and the devices that its containers name. Other input is not a pod."""
    pod = _mapping(manifest)
    spec = _mapping(pod.get("spec"))
    containers = [*_sequence(spec.get("initContainers")), *_sequence(spec.get("containers"))]
    names = [
        name
        for container in containers
        for entry in _sequence(_mapping(container).get("env"))
        if _mapping(entry).get("name") == VISIBLE_DEVICES
        for name in names_in(str(_mapping(entry).get("value") or ""))
    ]
    return str(_mapping(pod.get("metadata")).get("uid")), tuple(dict.fromkeys(names))


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _sequence(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
