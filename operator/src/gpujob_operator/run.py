"""Builds and runs the operator: connection, cache, kopf and watches, report server, Lease, loop.

Start order: connection, lists and watches, servers, Lease, loop. Stop order: the loop ends, writes
in flight finish, events are flushed, the Lease is released, then everything else ends.
"""

import asyncio
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gpujob_api.manifest import GPUSERVICE
from gpujob_api.meta import ANNOTATION_SPOT_POOLS, Metadata
from gpujob_operator.act.crash import CrashAfterWrites
from gpujob_operator.act.events import EventPoster
from gpujob_operator.act.executor import Executor
from gpujob_operator.act.front_writer import FrontWriter
from gpujob_operator.act.item_runner import ItemRunner
from gpujob_operator.act.service_writer import ServiceFeedback, ServiceWriter
from gpujob_operator.act.trials import Trials
from gpujob_operator.act.writer import Feedback, Writer
from gpujob_operator.client.connection import limit_read_buffers, load_configuration
from gpujob_operator.client.kube import (
    GPU_NODES,
    GPU_SERVICES,
    JOBS,
    NODES,
    PODS,
    PROFILES,
    QUEUES,
    Kube,
    Manifest,
    ResourceType,
)
from gpujob_operator.client.retry import Retry
from gpujob_operator.cycle import CycleDumps, PlanFunction
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import EventNote, Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.forecast.forecaster import Forecaster
from gpujob_operator.garbage import collect_later, collect_regularly, spare_later
from gpujob_operator.handlers.kopf_thread import KopfThread
from gpujob_operator.handlers.memo import Memo
from gpujob_operator.leadership.cache_sync import CacheSync, Mandate
from gpujob_operator.leadership.cluster_clock import ClusterClock
from gpujob_operator.leadership.lease import Leadership, LeaseSettings, Legacy
from gpujob_operator.leadership.report_endpoint import ReportEndpoint
from gpujob_operator.loop import Pace, SchedulingLoop
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.observe.scope import Scope
from gpujob_operator.observe.watch.relist import Relist
from gpujob_operator.observe.watch.watches import FOLLOWED, Watch, restart_of
from gpujob_operator.options import RunOptions, with_report_url
from gpujob_operator.port.gates import GateReceiver
from gpujob_operator.port.listener import listening
from gpujob_operator.port.parking import ParkingRequests
from gpujob_operator.port.readings import ReadingReceiver
from gpujob_operator.port.reports import REPORT_PATH, ReportReceiver
from gpujob_operator.port.tokens import TokenChecks
from gpujob_operator.render.event import event
from gpujob_operator.render.gate import gate_revision
from gpujob_operator.service_loop import GateSources, PlanServices, ServiceLoop
from gpujob_operator.signals import Signal
from gpujob_operator.supervision import Supervisor, background
from gpujob_operator.telemetry.health import HealthServer
from gpujob_operator.telemetry.life_signs import LifeSigns
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

_KINDS: Mapping[ResourceType, Kind] = {
    JOBS: Kind.JOB,
    GPU_NODES: Kind.GPU_NODE,
    QUEUES: Kind.QUEUE,
    PROFILES: Kind.PROFILE,
    GPU_SERVICES: Kind.SERVICE,
    PODS: Kind.POD,
    NODES: Kind.NODE,
}
FLUSH_SECONDS = 2.0
# Time for writes in flight at shutdown. A request takes at most 5 s.
DRAIN_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class _Clients:
    """The API server's clients, by purpose."""

    objects: Kube
    lease: Kube
    reviews: Kube

    async def close(self) -> None:
        for one in (self.objects, self.lease, self.reviews):
            await one.close()


class Operator:
    """One operator process. Everything runs in one event loop, except kopf, which has its own
    thread.

    Signals are built first, then the parts with what they depend on. Each signal is then connected
    to the parts that act on it.
    """

    def __init__(
        self,
        options: RunOptions,
        plan: PlanFunction,
        plan_services: PlanServices,
        pace: Pace | None = None,
    ) -> None:
        self._options = options
        self._plan = plan
        self._plan_services = plan_services
        self._pace = pace or Pace()
        self._metrics = Metrics()
        self._supervisor = Supervisor(self._metrics)
        self._dirty = Dirty()
        self._stop = asyncio.Event()
        self._took_lead = asyncio.Event()
        self._leads_changed = Signal[[bool]]()
        self._restored = Signal[[]]()
        clock_moved = Signal[[timedelta]]()
        self._clock = ClusterClock(utc_now, time.monotonic, clock_moved)
        self._cache = Cache(
            self._dirty,
            self._metrics,
            self._clock.now,
            Scope(options.watch_namespaces),
            restored=self._restored,
        )
        self._sync = CacheSync(self._cache, self._dirty)
        self._configuration: Configuration = options.configuration
        self._listening_since = self._clock.now()
        # Of the last cycle.
        self._snapshot: Snapshot | None = None
        clock_moved.connect(self._cache.clock_moved)
        self._leads_changed.connect(
            self._clock.hold,
            self._metrics.leader.set,
            self._listen_from_now_on,
            self._sync.leads_changed,
        )
        self._restored.connect(self._sync.restored)

    def stop(self) -> None:
        """Requests a graceful end. `run` returns after the writes in flight are finished."""
        self._stop.set()

    async def run(self) -> None:
        """Runs until `stop`, SIGTERM or SIGINT. A part that fails is restarted."""
        collect_later()
        limit_read_buffers()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        connection = await load_configuration(self._options.kubeconfig)
        crash = self._options.crash_after_writes
        after_write = CrashAfterWrites(crash) if crash else None
        # Each client has its own connections, so neither many writes nor many reviews delay the
        # Lease. The API server's answer to every attempt to lead has its time.
        lease = Kube(connection, heard=self._clock.heard)
        clients = _Clients(Kube(connection, after_write), lease, Kube(connection))
        memo = Memo(connection, self._cache, self._metrics)
        kopf = KopfThread(memo, self._metrics)
        try:
            await self._run_with(clients, memo, kopf)
        finally:
            await asyncio.to_thread(kopf.stop)
            await clients.close()

    async def _run_with(self, clients: "_Clients", memo: Memo, kopf: KopfThread) -> None:
        kube = clients.objects
        reports, metrics = self._options.report_listen, self._options.metrics_listen
        leadership = self._leadership(clients.lease)
        mandate = Mandate(leadership, self._sync)
        tokens = TokenChecks(clients.reviews, time.monotonic)
        receiver = self._receiver(tokens, mandate)
        readings = self._reading_receiver(tokens, mandate)
        poster = EventPoster(kube, self._metrics, time.monotonic)
        application = receiver.application()
        readings.add_to(application)
        gates = self._gate_receiver(tokens, mandate, receiver)
        gates.add_to(application)
        self._leads_changed.connect(readings.leads_changed)
        async with listening(application, reports.host, reports.port) as address:
            url = self._options.report_url or f"{address}{REPORT_PATH}"
            self._configuration = with_report_url(self._options.configuration, url)
            executor = self._executor(kube, mandate, poster)
            forecaster = self._forecaster(mandate)
            loop = self._scheduling_loop(executor, mandate, receiver, forecaster)
            services = self._service_loop(kube, mandate, poster, gates, receiver.parking)
            gates.held_first.connect(services.wake)
            watches = [Watch(kube, self._cache, self._metrics, one) for one in FOLLOWED]
            self._restored.connect(*(one.restart for one in watches), kopf.restart)
            health = self._health(loop, watches, memo, mandate)
            async with listening(health.application(), metrics.host, metrics.port) as metrics_url:
                log.info("started", reports=self._configuration.report_url, metrics=metrics_url)
                kopf.start()
                asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, loop.dump_next)
                silent = restart_of(watches, kopf.restart)
                relist = Relist(
                    kube, self._cache, silent=silent, watches=watches, listed=readings.look_again
                )
                keep = self._supervisor.keep
                parts = [
                    *(keep(f"watch {one.name}", one.run) for one in watches),
                    keep("relist", relist.run),
                    keep("event poster", poster.run),
                    keep("garbage", collect_regularly),
                    keep("forecaster", forecaster.run),
                    keep("services", services.run),
                    keep("refresh", lambda: self._sync.keep(relist.refresh, executor, leadership)),
                ]
                if (service := self._options.report_service) is not None:
                    endpoint = ReportEndpoint(clients.lease, service, mandate.leads)
                    parts.append(keep("endpoint", lambda: endpoint.keep(self._took_lead)))
                async with background(*parts):
                    all_written = await self._lead(leadership, loop, executor)
                    await poster.flush(FLUSH_SECONDS)
                    if all_written:
                        await self._hand_over(leadership)

    async def _lead(self, leadership: Leadership, loop: SchedulingLoop, executor: Executor) -> bool:
        """Holds the Lease and runs the loop until stopped. Returns whether every request was
        answered.
        """
        keep = self._supervisor.keep
        scheduling = keep("scheduling loop", loop.run, may_end=lambda: loop.stopping)
        async with background(keep("lease", leadership.keep)):
            running = asyncio.ensure_future(scheduling)
            await self._stop.wait()
            loop.stop()
            await running
            drained = await executor.drain(DRAIN_SECONDS)
            executor.submit(Plan(self._cache.placements.statuses()))
            return await executor.drain(DRAIN_SECONDS) and drained

    async def _hand_over(self, leadership: Leadership) -> None:
        await leadership.release(in_doubt=self._cache.placements.leaves_doubt)

    def _listen_from_now_on(self, leads: bool) -> None:
        """Records the start of leadership, because only the leader receives reports."""
        if leads:
            self._took_lead.set()
            self._listening_since = self._clock.now()

    def _leadership(self, kube: Kube) -> Leadership:
        options, spot = self._options, self._cache.spot
        return Leadership(
            kube,
            LeaseSettings(options.namespace, options.identity, seconds=options.lease_seconds),
            monotonic=time.monotonic,
            changed=self._leads_changed,
            restored=self._restored,
            legacy=Legacy(ANNOTATION_SPOT_POOLS, write=spot.to_text, read=spot.inherit),
        )

    def _reading_receiver(self, tokens: TokenChecks, mandate: Mandate) -> ReadingReceiver:
        return ReadingReceiver(
            self._cache,
            tokens,
            self._metrics,
            account=self._options.agent_account,
            clock=self._clock.now,
            monotonic=time.monotonic,
            is_leader=mandate.leads,
        )

    def _receiver(self, tokens: TokenChecks, mandate: Mandate) -> ReportReceiver:
        return ReportReceiver(
            self._cache.listers,
            tokens,
            self._dirty,
            self._metrics,
            clock=self._clock.now,
            monotonic=time.monotonic,
            interval_seconds=self._options.configuration.report_interval_seconds,
            is_leader=mandate.may_act,
        )

    def _gate_receiver(
        self, tokens: TokenChecks, mandate: Mandate, receiver: ReportReceiver
    ) -> GateReceiver:
        return GateReceiver(
            self._cache.listers,
            tokens,
            self._metrics,
            clock=self._clock.now,
            monotonic=time.monotonic,
            takes_requests=receiver.takes_requests,
            is_leader=mandate.may_act,
        )

    def _executor(self, kube: Kube, mandate: Mandate, poster: EventPoster) -> Executor:
        writer = Writer(
            kube,
            self._feedback(poster),
            configuration=self._configuration,
            clock=self._clock.now,
            may_act=mandate.may_act,
            version=lambda kind, uid: self._cache.version(_KINDS[kind], uid),
            unknown=lambda kind, uid: self._cache.unknown_fields(_KINDS[kind], uid),
        )
        runner = ItemRunner(
            writer,
            self._metrics,
            monotonic=time.monotonic,
            retry=Retry(retried=self._metrics.write_retries.inc),
            trials=Trials(self._configuration, self._clock.now),
            placements=self._cache.placements,
            requests_of_jobs=self._cache.listers.requests_of_jobs,
        )
        return Executor(runner, self._metrics, settled=self._dirty.mark)

    def _forecaster(self, mandate: Mandate) -> Forecaster:
        return Forecaster(
            snapshot=lambda: self._snapshot,
            clock=self._clock.now,
            may_act=mandate.may_act,
            changed=self._dirty.mark,
            metrics=self._metrics,
        )

    def _scheduling_loop(
        self,
        executor: Executor,
        mandate: Mandate,
        receiver: ReportReceiver,
        forecaster: Forecaster,
    ) -> SchedulingLoop:
        directory = self._options.dump_directory

        def snapshot() -> Snapshot:
            snapshot = self._cache.snapshot(receiver.newest(), self._configuration)
            self._snapshot = replace(
                snapshot,
                yields=receiver.yields(),
                parking=receiver.parking.current(),
                listening_since=self._listening_since,
                forecast=forecaster.newest,
            )
            return self._snapshot

        return SchedulingLoop(
            snapshot=snapshot,
            plan=self._plan,
            executor=executor,
            dirty=self._dirty,
            metrics=self._metrics,
            clock=self._clock.now,
            may_act=mandate.may_act,
            dumps=None if directory is None else CycleDumps(directory),
            dump_every=self._options.dump_every,
            pace=self._pace,
            settled=spare_later,
            planned=receiver.parking.planned,
        )

    def _service_loop(
        self,
        kube: Kube,
        mandate: Mandate,
        poster: EventPoster,
        gates: GateReceiver,
        parking: ParkingRequests,
    ) -> ServiceLoop:
        def noted(metadata: Metadata, note: EventNote) -> None:
            poster.post(event(metadata, note, self._clock.now(), GPUSERVICE.kind))

        feedback = self._feedback(poster)
        writer = ServiceWriter(
            kube,
            ServiceFeedback(feedback.written, feedback.gone, noted),
            may_act=mandate.may_act,
            unknown=lambda uid: self._cache.unknown_fields(Kind.SERVICE, uid),
            configuration=self._configuration,
        )
        return ServiceLoop(
            services=lambda: self._cache.services.views,
            snapshot=lambda: self._snapshot,
            plan=self._plan_services,
            writer=writer,
            front=FrontWriter(kube, may_act=mandate.may_act),
            gates=GateSources(
                gates.newest,
                lambda service: gate_revision(service, self._configuration),
            ),
            parking=parking,
            may_act=mandate.may_act,
            clock=self._clock.now,
        )

    def _feedback(self, poster: EventPoster) -> Feedback:
        def written(resource: ResourceType, manifest: Manifest) -> None:
            self._cache.apply(_KINDS[resource], None, manifest)

        def gone(resource: ResourceType, uid: str) -> None:
            self._cache.forget(_KINDS[resource], uid)

        def noted(metadata: Metadata, note: EventNote) -> None:
            poster.post(event(metadata, note, self._clock.now()))

        return Feedback(written, gone, noted, self._restored)

    def _health(
        self,
        loop: SchedulingLoop,
        watches: list[Watch],
        memo: Memo,
        mandate: Mandate,
    ) -> HealthServer:
        signs = LifeSigns(
            cycle_at=lambda: loop.last_cycle_at,
            watches=watches,
            kopf=memo,
            failing=self._supervisor.failing_seconds,
        )
        return HealthServer(self._metrics, signs.ages, signs.unheard, mandate.missing)


def utc_now() -> datetime:
    return datetime.now(UTC)
