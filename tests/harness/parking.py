"""A service with one GPU whose replicas park: its worker, its gate and the planner in virtual time.

The requests are those of the operator's own `ParkingRequests`, and the reservation follows the
planner's own rule. Writes may take a while, replies may be lost, and other jobs take what is free.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from gpujob_api.gate import GateReport
from gpujob_api.gpujob import GPUJob, GPUJobStatus, Measurement, Reservation, ReservationSource
from gpujob_api.gpuservice import Replicas, ReplicaStatus, ServiceOptimize
from gpujob_api.quantities import GIB
from gpujob_api.serving import BackendName, ServingReport
from gpujob_operator.decide.measurement.parking import is_parked, with_parked_reservation
from gpujob_operator.decide.measurement.reservation import with_margin
from gpujob_operator.decide.model.assumption import assumed_status
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.service_plan import ServiceInputs, ServiceStep
from gpujob_operator.decide.model.snapshot import GPUUsage, Snapshot
from gpujob_operator.decide.services.plan import plan_services
from gpujob_operator.port.parking import ParkingRequests
from tests.harness.services import Live, ServiceWorld, make_service

CONFIGURATION = Configuration()
GPU_BYTES, PEAK_BYTES, PARKED_BYTES = 20 * GIB, 8 * GIB, GIB
FULL_BYTES = with_margin(PEAK_BYTES, CONFIGURATION)
PARK_AFTER, STOP_AFTER = 20, 200
RESERVED = Reservation(FULL_BYTES, 10.0, ReservationSource.MEASURED)


@dataclass(slots=True)
class Worker:
    """A replica's process. It follows each reply at once."""

    parked_at: datetime | None = None
    parks: int = 0


@dataclass(slots=True)
class ParkingWorld(ServiceWorld):
    # Memory of other jobs on the GPU.
    others_bytes: int = 0
    can_park: bool = True
    loses_replies: bool = False
    # Whether reports of replicas reach the operator.
    hears: bool = True
    # Rounds from a decision about a reservation until it is stored.
    write_rounds: int = 0
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    # The replicas that the gate sends requests to.
    routes: tuple[str, ...] = ()
    # The status of a write in flight, by job, and the rounds until it is stored.
    writes: dict[str, tuple[GPUJobStatus, int]] = field(
        default_factory=dict[str, tuple[GPUJobStatus, int]]
    )
    # Requests that were sent to a parked replica.
    misrouted: int = 0
    requests: ParkingRequests = field(default_factory=lambda: ParkingRequests(lambda: None))

    def restart_operator(self) -> None:
        self.requests = ParkingRequests(lambda: None)

    @property
    def parked(self) -> list[Worker]:
        known = {live.job.metadata.uid for live in self.replicas()}
        return [one for uid, one in self.workers.items() if uid in known and one.parked_at]

    def worker(self, live: Live) -> Worker:
        return self.workers.setdefault(live.job.metadata.uid, Worker())

    def free_bytes(self) -> int:
        """The memory that no job reserves, writes in flight included."""
        held = 0
        for live in self.replicas():
            reservation = self._assumed(live.job).status.reservation
            held += reservation.memory_bytes if reservation is not None and live.ready else 0
        return GPU_BYTES - self.others_bytes - held

    def take(self, memory_bytes: int) -> None:
        """Places another job, if it fits."""
        if memory_bytes <= self.free_bytes():
            self.others_bytes += memory_bytes

    def inputs(self) -> ServiceInputs:
        return replace(super(ParkingWorld, self).inputs(), waking_since=self.requests.waking_since)

    def tick(self) -> ServiceStep:
        step = super(ParkingWorld, self).tick()
        plan = plan_services([self.inputs()], self.now)
        self.requests.ask(plan.parking, self.now)
        self._store()
        self._plan()
        self._reply()
        self._route()
        assert self.used_bytes() <= GPU_BYTES, "memory that another job was given"
        return step

    def used_bytes(self) -> int:
        awake = [self.worker(live).parked_at is None for live in self.ready_pods()]
        own = sum(PEAK_BYTES if one else PARKED_BYTES for one in awake)
        return self.others_bytes + own

    def ready_pods(self) -> list[Live]:
        return [one for one in self.replicas() if one.ready]

    def serving(self, live: Live) -> ServingReport | None:
        if not self.hears:
            return None
        at = self.worker(live).parked_at
        seconds = None if at is None else (self.now - at).total_seconds()
        return ServingReport(ready=True, can_park=self.can_park, parked_seconds=seconds)

    def _assumed(self, job: GPUJob) -> GPUJob:
        write = self.writes.get(job.metadata.uid)
        assumed = assumed_status(job.status, write[0]) if write is not None else None
        return job if assumed is None else replace(job, status=assumed)

    def _store(self) -> None:
        for live in self.ready_pods():
            uid = live.job.metadata.uid
            if live.job.status.reservation is None or live.job.status.measurement is None:
                known = Measurement(PEAK_BYTES, 10.0, 100)
                status = replace(live.job.status, reservation=RESERVED, measurement=known)
                live.job = replace(live.job, status=status)
            status, left = self.writes.pop(uid, (None, 0))
            if status is not None and left <= 0:
                live.job = replace(live.job, status=status)
            elif status is not None:
                self.writes[uid] = status, left - 1

    def _plan(self) -> None:
        """Plays a cycle. It decides about each reservation without a write in flight."""
        asked = {one.job_uid: one.parks for one in self.requests.current()}
        jobs = tuple(self._assumed(live.job) for live in self.ready_pods())
        for live in self.ready_pods():
            uid, serving = live.job.metadata.uid, self.serving(live)
            if uid in self.writes or not is_parked(live.job.status, serving):
                continue
            is_awake = self.worker(live).parked_at is None
            used_bytes = PEAK_BYTES if is_awake else PARKED_BYTES
            usage = GPUUsage(PEAK_BYTES, 0.0, 100, memory_bytes=used_bytes)
            held = live.job.status.reservation
            assert held is not None
            status, _ = with_parked_reservation(
                live.job.status,
                serving,
                usage,
                asked.get(uid),
                CONFIGURATION,
                partial(int, held.memory_bytes + self.free_bytes()),
            )
            if status is not live.job.status:
                self.writes[uid] = status, self.write_rounds
        self.requests.planned(Snapshot(jobs=jobs))

    def _reply(self) -> None:
        for live in self.ready_pods():
            park = None if self.loses_replies or not self.hears else self.requests.answer(live.job)
            worker = self.worker(live)
            if park is True and worker.parked_at is None:
                worker.parked_at, worker.parks = self.now, worker.parks + 1
            elif park is False:
                worker.parked_at = None

    def _route(self) -> None:
        """Plays the poll of the gate, if the gate reports."""
        if not all(live.is_silent for live in self.gates.values()):
            known = {one.job.metadata.name: one for one in self.ready_pods()}
            self.routes = tuple(
                one.name
                for one in self.status.replicas
                if one.name in known and self._takes_requests(known[one.name], one)
            )

    def _takes_requests(self, live: Live, shown: ReplicaStatus) -> bool:
        rests = self.requests.rests(live.job.metadata.uid)
        ready = self.worker(live).parked_at is None if self.hears else shown.ready
        return bool(shown.address) and not rests and ready

    def _answer(self) -> None:
        """Forwards requests to the replicas in `routes`, as the gate does, and reports."""
        there = {one.job.metadata.name: one for one in self.ready_pods()}
        known = [there[name] for name in self.routes if name in there]
        if known and self.held:
            self.misrouted += sum(self.worker(one).parked_at is not None for one in known)
            self.answered += len(self.held)
            self.held.clear()
        limit = self.service.spec.replicas.cold_start_seconds
        late = [one for one in self.held if (self.now - one).total_seconds() > limit]
        self.expired += len(late)
        self.held = [one for one in self.held if one not in late]
        for live in self.gates.values():
            if live.is_silent or live.ready_at > self.now:
                continue
            since = max(live.started_at, self.last_request_at)
            idle = 0.0 if self.held else (self.now - since).total_seconds()
            live.reported = GateReport(
                len(self.steps), len(self.held), 0, idle, replicas=len(self.routes)
            )
            live.reported_at = self.now


def parking_world() -> ParkingWorld:
    replicas = Replicas(
        0, 1, stop_after_seconds=STOP_AFTER, park_after_seconds=PARK_AFTER, cold_start_seconds=30
    )
    optimize = ServiceOptimize(backend=BackendName.EAGER)
    world = ParkingWorld(make_service(replicas=replicas, optimize=optimize))
    world.report = world.serving
    return world
