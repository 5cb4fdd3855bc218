"""One operator process: its real parts in a loop of virtual time, wired as in `run.py`.

Modelled: kopf, whose events lag, repeat and get lost; the bytes between HTTP's two ends; the
answers of the forecaster's child process; a process that is paused, crashes and starts again.
Real: client, watches of jobs, pods and nodes, full lists, cache, planning, scheduling loop,
executor with its dry runs and retries, service loop with its writers, rendering, events, Lease,
report server with its token reviews, forecaster. `test_shell_wiring.py` names the parts that are
left out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, cast

from aiohttp import web

from gpujob_api.manifest import GPUSERVICE
from gpujob_api.meta import Metadata
from gpujob_operator.act.backoff import Backoff
from gpujob_operator.act.events import EventPoster
from gpujob_operator.act.executor import Executor
from gpujob_operator.act.front_writer import FrontWriter
from gpujob_operator.act.item_runner import ItemRunner
from gpujob_operator.act.service_writer import ServiceFeedback, ServiceWriter
from gpujob_operator.act.trials import Trials
from gpujob_operator.act.writer import Feedback, Writer
from gpujob_operator.client.kube import Manifest, ResourceType
from gpujob_operator.client.retry import Retry
from gpujob_operator.cycle import PlanFunction
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import EventNote, Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.services.plan import plan_services
from gpujob_operator.forecast.forecaster import Forecaster
from gpujob_operator.leadership.cache_sync import CacheSync, Mandate
from gpujob_operator.leadership.cluster_clock import ClusterClock
from gpujob_operator.leadership.lease import LEASE_SECONDS, Leadership, LeaseSettings
from gpujob_operator.loop import SchedulingLoop
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.observe.watch.relist import Relist
from gpujob_operator.observe.watch.watches import FOLLOWED, Watch, restart_of
from gpujob_operator.port.gates import GateReceiver
from gpujob_operator.port.reports import ReportReceiver
from gpujob_operator.port.tokens import TokenChecks
from gpujob_operator.render.event import event
from gpujob_operator.render.gate import gate_revision
from gpujob_operator.service_loop import GateSources, PlanServices, ServiceLoop
from gpujob_operator.signals import Signal
from gpujob_operator.telemetry.metrics import Metrics
from tests.simulation.api_server import ApiServer
from tests.simulation.clock import Clock
from tests.simulation.connection import KINDS, Connection
from tests.simulation.event_loop import VirtualLoop
from tests.simulation.faults import Faults
from tests.simulation.forecasts import PlayedForecasts
from tests.simulation.kopf_watches import KopfWatches
from tests.simulation.kube import SimulatedKube
from tests.simulation.posts import Post
from tests.simulation.quotas import PodQuotas
from tests.simulation.reading_port import ReadingPort
from tests.simulation.troubles import Troubles

METRICS = Metrics()
Answered = Callable[[int, str], None]
Receive = Callable[[web.Request], Awaitable[web.Response]]


@dataclass(frozen=True, slots=True)
class World:
    """What every process of the simulation stands on."""

    clock: Clock
    api: ApiServer
    faults: Faults
    troubles: Troubles
    quotas: PodQuotas
    # Told of what should never happen: an exception that ends the process, or a cycle.
    broke: Callable[[str, BaseException], None]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a process is made of; mutants put something else in place of one of them."""

    executor: type[Executor] = Executor
    cache: type[Cache] = Cache
    kube: type[SimulatedKube] = SimulatedKube
    clock: type[ClusterClock] = ClusterClock
    trials: type[Trials] = Trials
    services: PlanServices = plan_services


class OperatorShell:
    """One process. `crash` ends it; a new one is another object with another name."""

    def __init__(
        self,
        name: str,
        world: World,
        plan: PlanFunction,
        configuration: Configuration,
        parts: Parts,
        clock_error_seconds: float = 0.0,
    ) -> None:
        self.name = name
        self._world = world
        self._clock, self._faults = world.clock, world.faults
        self._plan = plan
        self._configuration = configuration
        self._parts = parts
        self.alive = True
        self.cycles = 0
        # How far its wall clock is ahead of the API server's.
        self.clock_error_seconds = clock_error_seconds
        self._leads_changed, self._restored = Signal[[bool]](), Signal[[]]()
        clock_moved = Signal[[timedelta]]()
        self._time = parts.clock(self._wall, self._now, clock_moved)
        self._listening_since = self._moment()
        self._loop = VirtualLoop(self._clock, self._failed)
        self._dirty = Dirty()
        self._watches: list[Watch] = []
        self._cache = parts.cache(self._dirty, METRICS, self._moment, restored=self._restored)
        self._sync = CacheSync(self._cache, self._dirty)
        clock_moved.connect(self._cache.clock_moved)
        self._leads_changed.connect(
            self._time.hold, self._listen_from_now_on, self._sync.leads_changed
        )
        self._restored.connect(self._sync.restored, self._restart_watches)
        # As in `run.py`, each has connections of its own.
        self.kube, lease = self._client(), self._client(self._time.heard)
        reviews, self._checks = self._client(), self._client()
        self._leadership = self._make_leadership(lease)
        self._mandate = Mandate(self._leadership, self._sync)
        tokens = TokenChecks(reviews, self._now)
        self._receiver = self._make_receiver(tokens)
        self._gates = GateReceiver(
            self._cache.listers,
            tokens,
            METRICS,
            clock=self._moment,
            monotonic=self._now,
            takes_requests=self._receiver.takes_requests,
            is_leader=self._may_act,
        )
        self.readings = ReadingPort(
            self._clock, self._loop, self._cache, tokens, METRICS, self._moment, lambda: self.leads
        )
        self._leads_changed.connect(self.readings.leads_changed)
        self._poster = EventPoster(self.kube, METRICS, self._now)
        self._newest_snapshot: Snapshot | None = None
        self._forecaster = Forecaster(
            snapshot=lambda: self._newest_snapshot,
            clock=self._moment,
            may_act=self._may_act,
            changed=self._dirty.mark,
            metrics=METRICS,
            calculate=PlayedForecasts(world.clock, world.faults).calculate,
        )
        self._kopf = KopfWatches(
            self._clock, world.api, self._loop, self._faults, self._cache, self._failed
        )
        self._loop.call_soon(self._start)

    def _client(self, heard: Callable[[str | None], None] = lambda date: None) -> SimulatedKube:
        world = self._world
        connection = Connection(
            self.name, world.clock, world.api, self._loop, world.faults, world.troubles,
            world.quotas,
            self._written,
        )  # fmt: skip
        return self._parts.kube(connection, heard)

    # -- being alive

    @property
    def leads(self) -> bool:
        return self.alive and self._leadership.leads

    def crash(self) -> None:
        self.alive = False
        # Its sockets are closed by the kernel.
        self.readings.cut()
        self._loop.kill()
        self.kube.cut()
        self._kopf.cut()

    def close(self) -> None:
        """At the end of a simulation, so that nothing of it is left."""
        self.crash()
        self._loop.close()

    def pause(self, seconds: float) -> None:
        self._loop.pause(seconds)

    def _start(self) -> None:
        self._kopf.start()
        uniform = self._clock.random.uniform
        retry = Retry(uniform=uniform)
        watches = self._watches = [
            Watch(self.kube, self._cache, METRICS, one, uniform=uniform) for one in FOLLOWED
        ]
        silent = restart_of(watches, self._kopf.restart)
        relist = Relist(
            *(self.kube, self._cache),
            silent=silent,
            watches=watches,
            retry=retry,
            listed=self.readings.look_again,
        )
        executor = self._executor()
        services = self._service_loop()
        self._gates.held_first.connect(services.wake)
        checks = Relist(self._checks, self._cache, silent=silent, retry=retry)
        for part in (
            *(watch.run() for watch in watches),
            self._leadership.keep(),
            self._sync.keep(relist.refresh, executor, self._leadership),
            checks.run(),
            self._poster.run(),
            self._forecaster.run(),
            self._scheduling_loop(executor).run(),
            services.run(),
        ):
            self._loop.create_task(part).add_done_callback(self._part_ended)

    def _part_ended(self, task: "asyncio.Task[None]") -> None:
        """As in `run.py`: a part that ends takes the process with it."""
        if self.alive and not task.cancelled():
            error = task.exception()
            self._failed(error or RuntimeError(f"{task.get_coro()} ended"))

    def _failed(self, error: BaseException) -> None:
        if self.alive:
            self.crash()
            self._world.broke(f"{self.name} ended", error)

    def _written(self) -> None:
        self._faults.writes += 1
        if self._faults.counts_down_to_crash():
            self.crash()

    # -- the Lease, and full lists

    def _make_leadership(self, kube: SimulatedKube) -> Leadership:
        # With a Lease of their own both believe that they lead.
        lease = f"lease-{self.name}" if self._faults.split_brain else "lease"
        return Leadership(
            kube,
            LeaseSettings("system", self.name, lease, LEASE_SECONDS),
            monotonic=self._now,
            changed=self._leads_changed,
            restored=self._restored,
        )

    def _listen_from_now_on(self, leads: bool) -> None:
        if leads:
            self._listening_since = self._moment()

    # -- reports

    def _make_receiver(self, tokens: TokenChecks) -> ReportReceiver:
        return ReportReceiver(
            self._cache.listers,
            tokens,
            self._dirty,
            METRICS,
            clock=self._moment,
            monotonic=self._now,
            interval_seconds=self._configuration.report_interval_seconds,
            is_leader=self._may_act,
        )

    def receive(self, post: Post, answered: Answered) -> None:
        """A report arrives; `answered` is told the status and the body, unless the process ends."""
        self._answer(self._receiver._post, post, answered)

    def receive_of_gate(self, post: Post, answered: Answered) -> None:
        self._answer(self._gates._post, post, answered)

    def _answer(self, receive: Receive, post: Post, answered: Answered) -> None:
        async def answer() -> None:
            response = await receive(cast("web.Request", post))
            answered(response.status, response.text or "")

        if self.alive:
            self._loop.call_soon(lambda: self._loop.create_task(answer()))

    # -- the loop

    def _scheduling_loop(self, executor: Executor) -> SchedulingLoop:
        return SchedulingLoop(
            snapshot=self._snapshot,
            plan=self._decide,
            executor=executor,
            dirty=self._dirty,
            metrics=METRICS,
            clock=self._moment,
            may_act=self._may_act,
            # A cycle takes no virtual time, however busy the machine is: a seed can be replayed.
            monotonic=self._now,
            planned=self._receiver.parking.planned,
        )

    def _service_loop(self) -> ServiceLoop:
        writer = ServiceWriter(
            self.kube,
            ServiceFeedback(self._written_back, self._gone, self._noted_of_service),
            may_act=self._may_act,
            unknown=lambda uid: self._cache.unknown_fields(Kind.SERVICE, uid),
            configuration=self._configuration,
        )
        return ServiceLoop(
            services=lambda: self._cache.services.views,
            snapshot=lambda: self._newest_snapshot,
            plan=self._parts.services,
            writer=writer,
            front=FrontWriter(self.kube, may_act=self._may_act),
            gates=GateSources(
                self._gates.newest,
                lambda service: gate_revision(service, self._configuration),
            ),
            parking=self._receiver.parking,
            may_act=self._may_act,
            clock=self._moment,
        )

    def _executor(self) -> Executor:
        uniform = self._clock.random.uniform
        writer = Writer(
            self.kube,
            Feedback(self._written_back, self._gone, self._noted, self._restored),
            configuration=self._configuration,
            clock=self._moment,
            may_act=self._may_act,
            version=self._version,
            unknown=self._unknown,
        )
        runner = ItemRunner(
            writer,
            METRICS,
            monotonic=self._now,
            retry=Retry(uniform=uniform),
            backoff=Backoff(self._now, uniform),
            trials=self._parts.trials(self._configuration, self._moment),
            placements=self._cache.placements,
            requests_of_jobs=self._cache.listers.requests_of_jobs,
        )
        return self._parts.executor(runner, METRICS, settled=self._dirty.mark)

    def _now(self) -> float:
        return self._clock.now

    def _wall(self) -> datetime:
        return self._clock.moment + timedelta(seconds=self.clock_error_seconds)

    def _moment(self) -> datetime:
        return self._time.now()

    def _may_act(self) -> bool:
        return self.alive and self._mandate.may_act()

    def _written_back(self, resource: ResourceType, manifest: Mapping[str, Any]) -> None:
        kind = KINDS[resource]
        if isinstance(kind, Kind):
            self._cache.apply(kind, None, manifest)

    def _version(self, resource: ResourceType, uid: str) -> int:
        kind = KINDS[resource]
        return self._cache.version(kind, uid) if isinstance(kind, Kind) else 0

    def _unknown(self, resource: ResourceType, uid: str) -> Manifest:
        kind = KINDS[resource]
        return self._cache.unknown_fields(kind, uid) if isinstance(kind, Kind) else {}

    def _noted(self, metadata: Metadata, note: EventNote) -> None:
        self._poster.post(event(metadata, note, self._moment()))

    def _noted_of_service(self, metadata: Metadata, note: EventNote) -> None:
        self._poster.post(event(metadata, note, self._moment(), GPUSERVICE.kind))

    def _restart_watches(self) -> None:
        for one in self._watches:
            one.restart()
        self._kopf.restart()

    def _gone(self, resource: ResourceType, uid: str) -> None:
        kind = KINDS[resource]
        if isinstance(kind, Kind):
            self._cache.forget(kind, uid)

    def _snapshot(self) -> Snapshot:
        snapshot = self._cache.snapshot(self._receiver.newest(), self._configuration)
        self._newest_snapshot = replace(
            snapshot,
            yields=self._receiver.yields(),
            parking=self._receiver.parking.current(),
            listening_since=self._listening_since,
            forecast=self._forecaster.newest,
        )
        return self._newest_snapshot

    def _decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        self.cycles += 1
        try:
            return self._plan(snapshot, now)
        except Exception as error:
            self._world.broke("a cycle", error)
            raise
