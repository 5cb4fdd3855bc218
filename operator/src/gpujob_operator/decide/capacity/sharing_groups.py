"""Which queues let their jobs share GPUs with each other (`spec.sharingGroup` of a GPUQueue)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuqueue import DEFAULT_QUEUE, GPUQueue
from gpujob_operator.decide.model.held_gpus import queue_of
from gpujob_operator.decide.packing.party import ANYBODY, Party


@dataclass(frozen=True, slots=True)
class SharingGroups:
    """The group of each queue, by name. A queue that names none is a group of its own.

    Empty where there is only one group: everybody shares then, and jobs need not be distinguished.
    """

    by_queue: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, queues: Iterable[GPUQueue]) -> "SharingGroups":
        # Jobs may be in this queue also where there is no object of the name.
        groups = {DEFAULT_QUEUE: _alone(DEFAULT_QUEUE)}
        for queue in queues:
            name, group = queue.metadata.name, queue.spec.sharing_group
            groups[name] = _alone(name) if group is None else f"group {group}"
        return cls(groups) if len(set(groups.values())) > 1 else cls()

    def party(self, job: GPUJob) -> Party:
        if not self.by_queue:
            return ANYBODY
        queue = queue_of(job)
        # The queue of a running job may have been deleted.
        group = self.by_queue.get(queue, _alone(queue))
        return Party(_number(job.metadata.namespace), _number(group))


def _alone(queue: str) -> str:
    return f"queue {queue}"


@lru_cache(maxsize=4096)
def _number(name: str) -> int:
    """A number for the name, so that arrays can compare names. A hash of 63 bits: that two of a
    million names have the same number is less likely than one in ten million."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) >> 1
