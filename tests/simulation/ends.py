"""How the workers of attempts ended, as kubelets said, and of which attempts nobody can know it."""

from collections import defaultdict
from collections.abc import Iterable, Set

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.report import Report, WorkerPhase
from tests.simulation.api_server import Manifest, Revision
from tests.simulation.pods import is_marked, worker_ended

# The UID of a job, and one of its attempts.
Attempt = tuple[str, int]


class Ends:
    """Feed it every revision of the pods that operators created."""

    def __init__(self, operators: Set[str], *, sees_all: bool) -> None:
        """`sees_all`: no fault keeps an event from the operators, so that they know of each end
        that was written."""
        # The exit codes of an attempt, by rank and the pod's UID: a request that comes late makes
        # a second pod of a worker that is done, and undoes nothing.
        self.exits: dict[Attempt, dict[tuple[int, str], int]] = defaultdict(dict)
        self._operators = operators
        self._sees_all = sees_all
        # Attempts whose end may be unseen: of a pod that somebody else than an operator took away,
        # or that ended just before an operator did.
        self._robbed: set[Attempt] = set()
        # Attempts that were told to stop, and those of which a worker said that it was.
        self._stopped: set[Attempt] = set()
        self._left_early: set[Attempt] = set()
        # Those of which a worker ended with 0 and left no report of its last step.
        self._unproven: set[Attempt] = set()
        # Those of which a worker was ended from outside, as its pod or its node shows.
        self._asked: set[Attempt] = set()
        self._leaving_nodes: set[str] = set()
        # Attempts with such an end on a node, as long as no operator has decided about them.
        self._undecided: dict[str, set[Attempt]] = defaultdict(set)
        self._ended: set[str] = set()
        self._asked_to_go: set[str] = set()

    def is_known(self, attempt: Attempt) -> bool:
        """Whether an operator can know how the attempt ended.

        Exit 0 before the last step is what a script does that saves and leaves. So after a stop, or
        an end from outside, it goes by the worker's report. One that lies about its steps harms its
        own job.
        """
        doubtful = (self._stopped | self._asked) & self._unproven
        return attempt not in self._robbed | self._left_early | doubtful

    def done(self, attempt: Attempt) -> set[int]:
        """The ranks that ended with exit 0."""
        return {rank for (rank, _), code in self.exits[attempt].items() if code == 0}

    def stopped(self, attempt: Attempt) -> None:
        """An operator told the attempt to stop."""
        self._stopped.add(attempt)

    def forget(self, attempts: Iterable[Attempt]) -> None:
        """The data were restored: how these attempts ended may be lost."""
        self._robbed.update(attempts)

    def leaves(self, node: str) -> None:
        """The node is about to go, and ends its processes itself.

        An operator that sees an end and this sign at the same time cannot know which came first.
        """
        self._leaving_nodes.add(node)
        self.gone(node)

    def gone(self, node: str) -> None:
        """The node exists no longer. An operator that was away sees this and the end together."""
        self._asked |= self._undecided.pop(node, set())

    def decided(self, attempt: Attempt) -> None:
        """An operator has written that the attempt is over."""
        for attempts in self._undecided.values():
            attempts.discard(attempt)

    def _note_end(self, pod: Manifest, attempt: Attempt, message: str) -> None:
        report = _report_in(message)
        steps = report.steps_total if report is not None else None
        proven = report is not None and steps is not None and report.step >= steps > 0
        if not proven:
            self._unproven.add(attempt)
            self._undecided[pod["spec"].get("nodeName", "")].add(attempt)
        if report is not None and report.phase is WorkerPhase.DRAINING and not proven:
            self._left_early.add(attempt)
        if is_marked(pod) or pod["spec"].get("nodeName") in self._leaving_nodes:
            self._asked.add(attempt)

    def note(self, revision: Revision, attempt: Attempt, job: GPUJob | None) -> None:
        """How the worker ended, and who took the pod away first, or its owner.

        A pod without an owner is the job's only where the job's status knows it: anybody can make
        one of that name, which ends nothing.
        """
        pod = revision.object
        uid = pod["metadata"]["uid"]
        if (ended := worker_ended(pod)) is not None:
            rank = int(pod["metadata"]["name"].rpartition("-")[2])
            self.exits[attempt][rank, uid] = ended["exitCode"]
            if ended["exitCode"] == 0 and uid not in self._ended:
                self._note_end(pod, attempt, ended.get("message", ""))
            self._ended.add(uid)
        if not pod["metadata"].get("ownerReferences") and not _knows(job, uid):
            self._robbed.add(attempt)
        going = revision.type == "DELETED" or "deletionTimestamp" in pod["metadata"]
        if going and uid not in self._asked_to_go:
            self._asked_to_go.add(uid)
            # Of one that goes while an event may be lost, nobody can say whether it was done.
            if self._sees_all:
                return
            if revision.by not in self._operators or uid not in self._ended:
                self._robbed.add(attempt)


def _report_in(message: str) -> Report | None:
    try:
        return Report.from_text(message)
    except FieldError:
        return None


def _knows(job: GPUJob | None, pod_uid: str) -> bool:
    placement = job.status.placement if job is not None else None
    workers = placement.workers if placement is not None else ()
    return pod_uid in {worker.pod_uid for worker in workers}
