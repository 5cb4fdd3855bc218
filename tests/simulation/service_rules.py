"""Checks I17 on every revision: the number of replicas of each service, and when they stop.

It reads commits and the acts of processes, never the state of an operator.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from gpujob_api.meta import LABEL_JOB_UID, LABEL_REVISION
from gpujob_operator.decide.services.rollout import SURGE_MAX
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer, Manifest, Revision
from tests.simulation.faults import Faults, Incident
from tests.simulation.gate_process import GateProcess
from tests.simulation.pods import of_service
from tests.simulation.requests import End, Process, Request, takes_requests
from tests.simulation.server import Server

PROMISE = "I17"
# The time for which an operator may act without a change: its event, or a request of the operator,
# is under way.
LAG_SECONDS = 5.0
# A factor for the longest delay of an event, which also delays the answer to a write.
LAG_OF_EVENTS = 3.0
LAG_OF_WRITES_SECONDS = 10.0
# A stream that fell silent is found by a list.
LAG_OF_BROKEN_WATCHES_SECONDS = 90.0
# A request of a frozen process arrives this much later.
LAG_OF_PAUSES_SECONDS = 45.0
# The time for which a gate's report counts, and the second until the next one.
REPORT_SECONDS = 12.0
# The time after a restore in which nothing is checked.
RESTORE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Lags:
    """The longest times until an operator has read a commit, and until its own requests arrive."""

    events_seconds: float = LAG_SECONDS
    requests_seconds: float = 0.0


def lags_of(faults: Faults, incidents: Iterable[Incident], *, troubled: bool) -> Lags:
    """Returns the lags of a seed. `troubled`: the API server refuses or delays some writes."""
    slow = faults.slow_write or faults.write_error or faults.lost_answer or troubled
    requests = LAG_OF_WRITES_SECONDS if slow else 0.0
    if any(one.what == "pause" for one in incidents):
        requests += LAG_OF_PAUSES_SECONDS
    broken = LAG_OF_BROKEN_WATCHES_SECONDS if faults.watch_break else 0.0
    events = LAG_SECONDS + LAG_OF_EVENTS * faults.watch_delay_max + broken
    return Lags(events + requests, requests)


# From the first write of a leader on, or until then, it may have no report of a replica.
LEAD_SECONDS = 15.0


@dataclass(slots=True)
class _Replica:
    """A replica's job. `live_since` is None once it is stopped, finished or deleted."""

    service: str
    live_since: float | None = None
    # When it last took requests, and since when it takes them.
    ready_at: float = float("-inf")
    ready_since: float | None = None

    def ready_for(self, since: float) -> bool:
        """Returns whether it has taken requests all the time since."""
        return self.ready_since is not None and self.ready_since <= since

    def was_ready(self, since: float) -> bool:
        """Returns whether it has taken requests at any time since."""
        return self.ready_since is not None or self.ready_at >= since


@dataclass(slots=True)
class _Bounds:
    """The bounds in the specs of a service: the time of the write, minimum and maximum."""

    written: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])

    def since(self, at: float) -> list[tuple[float, int, int]]:
        """Returns the bounds that were in force at any time since."""
        old = [one for one in self.written if one[0] <= at][-1:]
        return old + [one for one in self.written if one[0] > at]


class ServiceRules:
    """Observes every revision, and the end of every request."""

    def __init__(
        self,
        api: ApiServer,
        operators: Set[str],
        gates: Mapping[str, GateProcess],
        fail: Callable[[str, str], None],
        lags: Lags,
    ) -> None:
        self._api = api
        self._operators = operators
        self._gates = gates
        self._fail = fail
        self._lags = lags
        # By the job's UID, and by the service's.
        self._replicas: dict[str, _Replica] = {}
        self._bounds: dict[str, _Bounds] = {}
        self.ends: Counter[End] = Counter()
        # The newest answer of each service, by namespace/name.
        self.answered_at: dict[str, float] = {}
        # After a restore, what was decided before counts as unknown.
        self._restored_at = float("-inf")
        # The operator that wrote last, and the times of the first write of each.
        self._leader = ""
        self._led_at: list[float] = []
        # Requests that arrived at a parked replica: when, and at which.
        self._misrouted: list[tuple[float, str]] = []
        api.recorders.append(self.observe)
        api.restored.append(self._restored)

    def _restored(self) -> None:
        self._restored_at = self._api.now
        self._replicas.clear()
        for job in self._api.list(Kind.JOB):
            self._job(job)
        for pod in self._api.list(Kind.POD):
            self._pod(pod)

    def observe(self, revision: Revision) -> None:
        if revision.by in self._operators and revision.by != self._leader:
            self._leader = revision.by
            self._led_at.append(self._api.now)
        ours = revision.by in self._operators and not self._may_not_know()
        manifest = revision.object
        if revision.kind is Kind.SERVICE and revision.type != "DELETED":
            self._service(revision)
            if ours:
                self._check_stop(revision)
        elif not of_service(manifest):
            return
        elif revision.kind is Kind.JOB:
            if ours and revision.type == "DELETED":
                self._check_removal(manifest)
            if revision.type == "DELETED":
                self._replicas.pop(manifest["metadata"]["uid"], None)
            else:
                self._job(manifest)
                if ours and revision.type == "ADDED":
                    self._check_number(manifest)
        elif revision.kind is Kind.POD:
            self._pod(manifest, gone=revision.type == "DELETED")

    def _may_not_know(self) -> bool:
        return self._api.now <= self._restored_at + RESTORE_SECONDS

    # -- what there is

    def _service(self, revision: Revision) -> None:
        spec, uid = revision.object["spec"], revision.object["metadata"]["uid"]
        if revision.before is not None and revision.before["spec"] == spec:
            return
        replicas = spec["replicas"]
        minimum, most = replicas["minimum"], replicas["maximum"]
        least = 0 if spec["suspend"] else minimum
        self._bounds.setdefault(uid, _Bounds()).written.append((revision.at, least, most))

    def _job(self, job: Manifest) -> None:
        metadata, status = job["metadata"], job.get("status") or {}
        if LABEL_REVISION not in metadata.get("labels", {}):
            return
        replica = self._replicas.setdefault(metadata["uid"], _Replica(of_service(job)))
        ended = status.get("phase") in ("Succeeded", "Failed") or status.get("stop") is not None
        if ended or "deletionTimestamp" in metadata:
            replica.live_since = None
        elif replica.live_since is None:
            replica.live_since = self._api.now

    def _pod(self, pod: Manifest, *, gone: bool = False) -> None:
        replica = self._replicas.get(pod["metadata"]["labels"].get(LABEL_JOB_UID, ""))
        if replica is None:
            return
        # Nobody knows whose pod it is once its owner was taken away.
        owned = bool(pod["metadata"].get("ownerReferences"))
        ready, now = takes_requests(pod) and owned and not gone, self._api.now
        if replica.ready_since is not None and not ready:
            replica.ready_at, replica.ready_since = now, None
        elif replica.ready_since is None and ready:
            replica.ready_since = now

    def _of(self, service: str) -> Iterable[_Replica]:
        return (one for one in self._replicas.values() if one.service == service)

    # -- checks

    def _check_removal(self, job: Manifest) -> None:
        """No update and no smaller number leaves fewer ready replicas than the minimum, or than
        there were.
        """
        now, uid = self._api.now, of_service(job)
        removed, since = self._replicas.get(job["metadata"]["uid"]), now - self._lags.events_seconds
        if removed is None or self._api.find(Kind.SERVICE, uid) is None:
            return
        if not removed.ready_for(since):
            return
        before = sum(one.ready_for(since) for one in self._of(uid))
        wanted = min(before, *(least for _, least, _ in self._bounds[uid].since(since)))
        left = sum(one.was_ready(since) for one in self._of(uid) if one is not removed)
        if left < wanted:
            text = f"{left} replicas are left ready, of {before}"
            self._fail(PROMISE, f"{job['metadata']['name']} is removed: {text}")

    def _check_number(self, job: Manifest) -> None:
        """No more replicas than wanted and one that replaces another."""
        uid, since = of_service(job), self._api.now - self._lags.events_seconds
        if LABEL_REVISION not in job["metadata"]["labels"] or uid not in self._bounds:
            return
        live = sum(one.live_since is not None and one.live_since <= since for one in self._of(uid))
        most = max(most for _, _, most in self._bounds[uid].since(since))
        if live + 1 > most + SURGE_MAX:
            text = f"is created beside {live} others, of {most} at most"
            self._fail(PROMISE, f"{job['metadata']['name']} {text}")

    def _check_stop(self, revision: Revision) -> None:
        """The last replica stops without requests only. A status is written for the spec and the
        status that were decided on. A gate that lost the reference to its service is let go.
        """
        before, status = (revision.before or {}).get("status") or {}, revision.object["status"]
        spec = revision.object["spec"]
        if not before.get("wantedReplicas") or status["wantedReplicas"] or spec["suspend"]:
            return
        name, now = revision.object["metadata"]["name"], self._api.now
        known = now - REPORT_SECONDS - self._lags.requests_seconds
        after = spec["replicas"]["stopAfterSeconds"]
        for gate in self._gates.values():
            if gate.service != revision.object["metadata"]["uid"] or not self._is_owned(gate):
                continue
            asked = gate.asked_since()
            if asked is not None and asked <= known:
                self._fail(PROMISE, f"{name} stops while a request waits for {now - asked:.0f} s")
            seconds = now - gate.last_end(known)
            if seconds < after - 1:
                self._fail(PROMISE, f"{name} stops {seconds:.0f} s after a request, not {after}")

    def _is_owned(self, gate: GateProcess) -> bool:
        pod = self._api.find(Kind.POD, gate.pod_uid)
        return pod is not None and bool(pod["metadata"].get("ownerReferences"))

    # -- requests

    def ended(self, request: Request, end: End, process: Process | None) -> None:
        """Counts the end of a request. No replica that has drained may have got it."""
        self.ends[end] += 1
        if end is End.ANSWERED:
            self.answered_at[request.service] = self._api.now
        if end is not End.REFUSED or not isinstance(process, Server) or self._may_not_know():
            return
        if process.drained and process.machine.connected:
            text = f"has drained, and the Service of {request.service} still sends requests to it"
            self._fail(PROMISE, f"{process.name} {text}")

    def lost(self, server: Server, requests: int) -> None:
        """Fails: a replica was killed at the end of its grace."""
        self._fail(PROMISE, f"{server.name} ended with {requests} requests without an answer")

    def misrouted(self, server: Server) -> None:
        """Notes a request that arrived at a parked replica."""
        self._misrouted.append((self._api.now, server.name))

    def finish(self) -> None:
        """Fails for each request at a parked replica that no change of the leader excuses.

        A leader that dies in the second in which a replica parks leaves a gate that may send it one
        request: its successor has no report of the replica yet.
        """
        for at, name in self._misrouted:
            excuses = [*self._led_at[1:], self._restored_at]
            if all(abs(at - one) > LEAD_SECONDS for one in excuses):
                self._fail(PROMISE, f"{name} is parked, and got a request at {at:.0f} s")
