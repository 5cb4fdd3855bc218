"""How the workers of attempts ended, as kubelets said, and of which attempts nobody can know it."""

from collections import defaultdict
from collections.abc import Iterable, Set

from tests.simulation.api_server import Revision
from tests.simulation.pods import worker_ended

# The UID of a job, and one of its attempts.
Attempt = tuple[str, int]


class Ends:
    """Feed it every revision of the pods that operators created."""

    def __init__(self, operators: Set[str]) -> None:
        # The exit codes of an attempt, by rank.
        self.exits: dict[Attempt, dict[int, int]] = defaultdict(dict)
        self._operators = operators
        # Attempts whose end may be unseen: of a pod that somebody else than an operator took away,
        # or that ended just before an operator did.
        self._robbed: set[Attempt] = set()
        self._ended: set[str] = set()
        self._asked_to_go: set[str] = set()

    def is_known(self, attempt: Attempt) -> bool:
        """Whether an operator can know how the attempt ended."""
        return attempt not in self._robbed

    def forget(self, attempts: Iterable[Attempt]) -> None:
        """The data were restored: how these attempts ended may be lost."""
        self._robbed.update(attempts)

    def note(self, revision: Revision, attempt: Attempt) -> None:
        """How the worker ended, and who took the pod away first."""
        pod = revision.object
        uid = pod["metadata"]["uid"]
        if (ended := worker_ended(pod)) is not None:
            rank = int(pod["metadata"]["name"].rpartition("-")[2])
            self.exits[attempt][rank] = ended["exitCode"]
            self._ended.add(uid)
        going = revision.type == "DELETED" or "deletionTimestamp" in pod["metadata"]
        if going and uid not in self._asked_to_go:
            self._asked_to_go.add(uid)
            # Nobody can say of one that was asked to go while it ran whether it was done.
            if revision.by not in self._operators or uid not in self._ended:
                self._robbed.add(attempt)
