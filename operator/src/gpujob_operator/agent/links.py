"""Groups the GPUs of a node that are close together.

They are connected by NVLink or, on a node without NVLink, on one NUMA node. The groups are read
once for a set of GPUs, because wiring does not change at run time.
"""

from collections.abc import Callable, Sequence

from gpujob_operator.agent.nvml import Nvml, optional


class LinkGroups:
    """Group numbers of GPUs, by index. The number of a group is its smallest index."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._uuids: tuple[str, ...] = ()
        self._groups: dict[int, int] = {}

    def of(self, gpus: Sequence[tuple[int, str]]) -> dict[int, int]:
        """Returns the group of each GPU. `gpus` has index and UUID.

        Raises the module's NVMLError for a GPU that is lost.
        """
        uuids = tuple(uuid for _, uuid in gpus)
        if uuids != self._uuids:
            self._groups = self._find([index for index, _ in gpus])
            self._uuids = uuids
        return self._groups

    def _find(self, indexes: list[int]) -> dict[int, int]:
        if len(indexes) < 2:
            return dict.fromkeys(indexes, 0)
        handles = {index: self._nvml.nvmlDeviceGetHandleByIndex(index) for index in indexes}
        linked = _components(indexes, lambda one, other: self._linked(handles[one], handles[other]))
        if len(set(linked.values())) < len(indexes):
            return linked
        near = _components(indexes, lambda one, other: self._near(handles[one], handles[other]))
        known = len(set(near.values())) < len(indexes)
        # The topology is unknown, so no GPU counts as closer to one GPU than to another.
        return near if known else dict.fromkeys(indexes, 0)

    def _linked(self, one: object, other: object) -> bool:
        nvml = self._nvml
        status = optional(
            nvml,
            lambda: nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK),
        )
        return status is not None and status == nvml.NVML_P2P_STATUS_OK

    def _near(self, one: object, other: object) -> bool:
        nvml = self._nvml
        level = optional(nvml, lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(one, other))
        return level is not None and level <= nvml.NVML_TOPOLOGY_NODE


def _components(indexes: list[int], close: Callable[[int, int], bool]) -> dict[int, int]:
    """Returns the smallest index of the connected component of each index."""
    groups = {index: index for index in indexes}
    for position, one in enumerate(indexes):
        for other in indexes[position + 1 :]:
            if groups[one] != groups[other] and close(one, other):
                joined, old = sorted((groups[one], groups[other]))
                groups = {i: joined if group == old else group for i, group in groups.items()}
    return groups
