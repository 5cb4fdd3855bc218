"""The ledger of cards: what is free on each, after the driver, strangers and reservations (I1)."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob, ReservationSource
from gpujob_api.gpunode import GPU, UNREADABLE, GPUNode
from gpujob_api.meta import TAINT_RECLAIM
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.snapshot import NodeView, PodPhase, Snapshot


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job that holds part of a card. `excess_bytes` is measured use above what it holds."""

    job_uid: str
    memory_bytes: int
    utilization_percent: float
    whole_card: bool
    max_slowdown_percent: int
    excess_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Card:
    """One usable card. `others_bytes` is measured memory of nobody's GPUJob."""

    uuid: str
    model: str
    total_bytes: int
    driver_bytes: int
    others_bytes: int
    tenants: tuple[Tenant, ...] = ()
    blocked: str = ""

    @property
    def reserved_bytes(self) -> int:
        return sum(tenant.memory_bytes for tenant in self.tenants)

    @property
    def excess_bytes(self) -> int:
        return sum(tenant.excess_bytes for tenant in self.tenants)

    @property
    def free_bytes(self) -> int:
        """May be negative when a stranger or a leak took more than was left."""
        used_bytes = self.driver_bytes + self.others_bytes + self.excess_bytes
        return self.total_bytes - used_bytes - self.reserved_bytes

    @property
    def room_bytes(self) -> int:
        """What our jobs together can have: all but the driver's and strangers' memory."""
        return self.total_bytes - self.driver_bytes - self.others_bytes

    @property
    def utilization_percent(self) -> float:
        return sum(tenant.utilization_percent for tenant in self.tenants)

    @property
    def taken(self) -> bool:
        return any(tenant.whole_card for tenant in self.tenants)


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """One node of ours: its cards and what is left of CPU and memory after assumed pods."""

    node: NodeView
    price_per_gpu_hour: float | None
    cards: tuple[Card, ...]
    cpu_milli_free: int
    memory_bytes_free: int
    # Why nothing new may be placed here, or "".
    closed: str = ""


@dataclass(frozen=True, slots=True)
class FleetSize:
    """Cards and GPU memory in all."""

    cards: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """All nodes by name, in stable order."""

    nodes: Mapping[str, NodeCapacity] = field(default_factory=dict[str, NodeCapacity])
    # What a job can have at most of an empty card, by model.
    largest: Mapping[str, int] = field(default_factory=dict[str, int])

    def card(self, node_name: str, uuid: str) -> Card | None:
        node = self.nodes.get(node_name)
        cards = node.cards if node is not None else ()
        return next((card for card in cards if card.uuid == uuid), None)

    @property
    def size(self) -> FleetSize:
        """All cards there are, whoever uses them."""
        totals = [card.total_bytes for node in self.nodes.values() for card in node.cards]
        return FleetSize(len(totals), sum(totals))

    def models(self, accepted: Collection[str]) -> list[str]:
        """Card models that there are and that a job accepts; it accepts any if it names none."""
        return sorted(model for model in self.largest if not accepted or model in accepted)

    def largest_bytes(self, model: str) -> int:
        """What a job can have at most of an empty card of this model."""
        return self.largest.get(model, 0)


def build_capacity(
    snapshot: Snapshot, now: datetime, host_requests: Mapping[str, tuple[int, int]]
) -> Capacity:
    """The ledger before this cycle's placements.

    `host_requests` is CPU (milli) and memory (bytes) of one worker of each job, by job UID.
    """
    tenants = _tenants_by_card(snapshot.jobs)
    ours = _pods_of_attempts(snapshot)
    orphaned = _orphaned_cards(snapshot, ours)
    views = {node.name: node for node in snapshot.nodes}
    assumed = _assumed_requests(snapshot, host_requests)
    nodes: dict[str, NodeCapacity] = {}
    for gpu_node in sorted(snapshot.gpu_nodes, key=lambda n: n.metadata.name):
        view = views.get(gpu_node.metadata.name)
        if view is None:
            continue
        cpu, memory = assumed.get(view.name, (0, 0))
        nodes[view.name] = NodeCapacity(
            node=view,
            price_per_gpu_hour=_price(gpu_node, view, snapshot.configuration),
            cards=tuple(
                _card(gpu, tenants.get(gpu.uuid, ()), ours, gpu.uuid in orphaned)
                for gpu in sorted(gpu_node.status.gpus, key=lambda g: (g.index, g.uuid))
            ),
            cpu_milli_free=view.cpu_milli_free - cpu,
            memory_bytes_free=view.memory_bytes_free - memory,
            closed=closed_reason(view, gpu_node, snapshot.configuration, now),
        )
    return capacity_of(nodes)


def capacity_of(nodes: Mapping[str, NodeCapacity]) -> Capacity:
    """The ledger of these nodes."""
    largest: dict[str, int] = {}
    for node in nodes.values():
        for card in node.cards:
            room_bytes = card.total_bytes - card.driver_bytes
            if room_bytes > largest.get(card.model, -1):
                largest[card.model] = room_bytes
    return Capacity({name: nodes[name] for name in sorted(nodes)}, largest)


def holds_cards(job: GPUJob) -> bool:
    """True while an attempt of the job is not proven finished."""
    return job.status.placement is not None and not job.finished


def as_tenant(job: GPUJob) -> Tenant | None:
    reservation = job.status.reservation
    if reservation is None:
        return None
    whole = reservation.exclusive or reservation.source is ReservationSource.WHOLE_CARD
    return Tenant(
        job_uid=job.metadata.uid,
        memory_bytes=reservation.memory_bytes,
        utilization_percent=reservation.utilization_percent,
        whole_card=whole,
        max_slowdown_percent=job.spec.sharing.max_slowdown_percent,
    )


def _tenants_by_card(jobs: Iterable[GPUJob]) -> dict[str, tuple[Tenant, ...]]:
    found: dict[str, tuple[Tenant, ...]] = {}
    for job in sorted(jobs, key=lambda job: job.metadata.uid):
        tenant = as_tenant(job) if holds_cards(job) else None
        if tenant is None or job.status.placement is None:
            continue
        for worker in job.status.placement.workers:
            for uuid in worker.gpus:
                found[uuid] = (*found.get(uuid, ()), tenant)
    return found


def _pods_of_attempts(snapshot: Snapshot) -> dict[str, str]:
    """Live pods of attempts that hold cards: pod UID -> job UID."""
    holding = {(job.metadata.uid, job.status.attempt) for job in snapshot.jobs if holds_cards(job)}
    return {
        pod.uid: pod.job_uid
        for pod in snapshot.pods
        if not pod.finished and (pod.job_uid, pod.attempt) in holding
    }


def _orphaned_cards(snapshot: Snapshot, ours: Mapping[str, str]) -> set[str]:
    """Cards of live pods whose job is gone or does not hold them any more."""
    return {
        uuid
        for pod in snapshot.pods
        if not pod.finished and pod.uid not in ours
        for uuid in pod.gpus
    }


def _measured(gpu: GPU, tenants: tuple[Tenant, ...], ours: Mapping[str, str]) -> dict[str, int]:
    """Memory that each tenant's processes use on the card, by job UID."""
    used = {tenant.job_uid: 0 for tenant in tenants}
    for process in gpu.processes:
        job_uid = ours.get(process.pod_uid or "")
        if job_uid in used:
            used[job_uid] += process.memory_bytes
    return used


def _card(gpu: GPU, tenants: tuple[Tenant, ...], ours: Mapping[str, str], orphaned: bool) -> Card:
    used = _measured(gpu, tenants, ours)
    blocked = "" if gpu.healthy else _sickness(gpu.health_message)
    return Card(
        uuid=gpu.uuid,
        model=gpu.model,
        total_bytes=gpu.memory_total_bytes,
        driver_bytes=gpu.memory_reserved_bytes,
        others_bytes=max(0, gpu.memory_used_bytes - sum(used.values())),
        tenants=tuple(_with_excess(one, used[one.job_uid]) for one in tenants),
        blocked=blocked or ("a pod of an ended attempt is still there" if orphaned else ""),
    )


def _with_excess(tenant: Tenant, used_bytes: int) -> Tenant:
    excess_bytes = max(0, used_bytes - tenant.memory_bytes)
    same = excess_bytes == tenant.excess_bytes
    return tenant if same else replace(tenant, excess_bytes=excess_bytes)


def _sickness(message: str) -> str:
    """A card that cannot be read takes nothing new, but is no reason to leave it (I14)."""
    return (
        message if message.startswith(UNREADABLE) else f"unhealthy: {message or 'no reason given'}"
    )


def _assumed_requests(
    snapshot: Snapshot, host_requests: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """CPU and memory of workers that are placed but not yet bound to their node."""
    bound = {
        (pod.job_uid, pod.attempt, pod.rank)
        for pod in snapshot.pods
        if pod.node is not None or pod.phase is not PodPhase.PENDING
    }
    total: dict[str, tuple[int, int]] = {}
    for job in snapshot.jobs:
        if not holds_cards(job) or job.status.placement is None:
            continue
        cpu, memory = host_requests.get(job.metadata.uid, (0, 0))
        for worker in job.status.placement.workers:
            if (job.metadata.uid, job.status.attempt, worker.rank) not in bound:
                had_cpu, had_memory = total.get(worker.node, (0, 0))
                total[worker.node] = (had_cpu + cpu, had_memory + memory)
    return total


def _price(gpu_node: GPUNode, view: NodeView, configuration: Configuration) -> float | None:
    if gpu_node.spec.price_per_gpu_hour is not None:
        return gpu_node.spec.price_per_gpu_hour
    table = configuration.spot_price_per_gpu_hour if view.spot else configuration.price_per_gpu_hour
    models = {gpu.model for gpu in gpu_node.status.gpus}
    prices = [table[model] for model in sorted(models) if model in table]
    return prices[0] if prices else None


def closed_reason(
    view: NodeView, gpu_node: GPUNode, configuration: Configuration, now: datetime
) -> str:
    """Why nothing new may be placed on the node, or ""."""
    if any(taint.key == TAINT_RECLAIM for taint in view.taints):
        return "the node is being reclaimed"
    if not view.ready:
        return "the node is not ready"
    if view.unschedulable or gpu_node.spec.unschedulable:
        return "the node is cordoned"
    observed = gpu_node.status.observed_at
    if observed is None:
        return "the agent has not measured it yet"
    age = now - observed
    if age > timedelta(seconds=configuration.telemetry_stale_seconds):
        return (
            f"measurements are {age.total_seconds():.0f} s old "
            f"(limit {configuration.telemetry_stale_seconds:.0f} s)"
        )
    return ""
