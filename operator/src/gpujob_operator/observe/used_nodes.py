"""The nodes that attempts are on, whether or not they are managed."""

from collections import Counter
from collections.abc import Container

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.model.held_gpus import nodes_of


class UsedNodes(Container[str]):
    """Names of nodes. It follows the jobs that `changed` reports."""

    def __init__(self) -> None:
        # Jobs with an attempt on the node. No entry is 0.
        self._jobs: Counter[str] = Counter()

    def __contains__(self, name: object) -> bool:
        return name in self._jobs

    def changed(self, before: object, after: object) -> None:
        """Handles a change from the first to the second state. Anything but a job is on no node."""
        one = nodes_of(before) if isinstance(before, GPUJob) else frozenset[str]()
        other = nodes_of(after) if isinstance(after, GPUJob) else frozenset[str]()
        if one == other:
            return
        self._jobs.update(other)
        self._jobs.subtract(one)
        for name in one:
            if not self._jobs[name]:
                del self._jobs[name]
