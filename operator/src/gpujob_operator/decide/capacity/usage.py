"""What all jobs and pods use of nodes and GPUs, and the capacity that remains.

It is updated one job at a time. The sum of all `JobUsage`s gives the tenants of each GPU, the owner
of each process, and the CPU and memory that is assigned but not yet requested on a node. A node's
capacity is then computed in one pass over its GPUs, whatever the number of jobs elsewhere.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

from gpujob_api.copies import changed
from gpujob_api.gpunode import GPU, GPUNode, GPUProcess
from gpujob_operator.decide.capacity.availability import why_blocked, why_closed
from gpujob_operator.decide.capacity.cluster import (
    GPUCapacity,
    HostUse,
    NodeCapacity,
    Tenant,
)
from gpujob_operator.decide.capacity.job_usage import JobUsage, TerminatedPod
from gpujob_operator.decide.capacity.prices import (
    interruptions_per_hour,
    price_of,
    price_with_losses,
)
from gpujob_operator.decide.capacity.slowdown_law import PUBLISHED_SLOWDOWNS, Law
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import Place, context_bytes
from gpujob_operator.decide.model.notices import notice_of
from gpujob_operator.decide.model.snapshot import NodeView

T = TypeVar("T")
K = TypeVar("K")
# The end of a pod and a reading come from different clocks, and a process takes a moment to exit.
CLOCKS_DIFFER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned about nodes and GPUs from observation.

    It has how often spot nodes are reclaimed, by pool, and how much co-tenants slow each other, by
    GPU model.
    """

    spot_rates: Mapping[str, float] = field(default_factory=dict[str, float])
    laws: Mapping[str, Law] = field(default_factory=dict[str, Law])
    # Why failures of programs may be the GPU's fault, by node and GPU.
    suspects: Mapping[Place, str] = field(default_factory=dict[Place, str])


@dataclass(slots=True)
class ClusterUsage:
    """The sum over all jobs and pods. `add` and `remove` are inverse.

    A GPU belongs to one node. Another node's agent may report it as its own, and that report does
    not count.
    """

    # By node and GPU, in the order of the jobs' UIDs.
    tenants: dict[Place, tuple[Tenant, ...]] = field(
        default_factory=dict[Place, tuple[Tenant, ...]]
    )
    # The jobs of each live pod that is in its place. The API server may return several, and only
    # the first counts.
    owners: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    # By node and GPU.
    gpus_of_stale_pods: dict[Place, int] = field(default_factory=dict[Place, int])
    # By node: workers that are not there yet, and workers that are.
    not_yet_bound: dict[str, HostUse] = field(default_factory=dict[str, HostUse])
    bound: dict[str, HostUse] = field(default_factory=dict[str, HostUse])
    # Pods whose processes are gone, by UID. A pod that finished and was deleted is listed twice.
    ended: dict[str, tuple[TerminatedPod, ...]] = field(
        default_factory=dict[str, tuple[TerminatedPod, ...]]
    )

    def add(self, holding: JobUsage) -> None:
        if holding.tenant is not None:
            for place in holding.gpus:
                there = (*self.tenants.get(place, ()), holding.tenant)
                self.tenants[place] = tuple(sorted(there, key=lambda one: one.job_uid))
        for pod in holding.pods:
            self.owners[pod] = (*self.owners.get(pod, ()), holding.job_uid)
        for pod in holding.ended:
            self.ended[pod.pod_uid] = (*self.ended.get(pod.pod_uid, ()), pod)
        self._count(holding, 1)

    def remove(self, holding: JobUsage) -> None:
        for place in set(holding.gpus):
            there = self.tenants.get(place, ())
            _keep(self.tenants, place, tuple(t for t in there if t.job_uid != holding.job_uid))
        for pod in holding.pods:
            _keep(self.owners, pod, _without(self.owners.get(pod, ()), holding.job_uid))
        for pod in holding.ended:
            _keep(self.ended, pod.pod_uid, _without(self.ended.get(pod.pod_uid, ()), pod))
        self._count(holding, -1)

    def _count(self, holding: JobUsage, sign: int) -> None:
        for stray in holding.gpus_of_stale_pods:
            self.gpus_of_stale_pods[stray] = self.gpus_of_stale_pods.get(stray, 0) + sign
            if not self.gpus_of_stale_pods[stray]:
                del self.gpus_of_stale_pods[stray]
        _count_pods(self.not_yet_bound, holding.not_yet_bound, sign)
        _count_pods(self.bound, holding.bound, sign)

    def node(
        self,
        view: NodeView,
        gpu_node: GPUNode,
        configuration: Configuration,
        now: datetime,
        learned: "Learned",
    ) -> NodeCapacity:
        """Returns the capacity of one node."""
        price = price_of(gpu_node, view, configuration)
        rate = interruptions_per_hour(view, learned.spot_rates)
        notice = notice_of(view)
        gpus = sorted(gpu_node.status.gpus, key=lambda gpu: (gpu.index, gpu.uuid))
        unbound = self.not_yet_bound.get(view.name, HostUse())
        return NodeCapacity(
            node=view,
            price_per_gpu_hour=price,
            gpus=tuple([self._gpu(gpu, view.name, learned, gpu_node) for gpu in gpus]),
            cpu_milli_free=view.cpu_milli_free - unbound.cpu_milli,
            memory_bytes_free=view.memory_bytes_free - unbound.memory_bytes,
            pods_free=view.pods_free - unbound.pods,
            without_jobs=self._without_jobs(view),
            closed=why_closed(view, gpu_node, notice, configuration, now),
            notice=notice,
            interruptions_per_hour=rate,
            price_with_losses=price_with_losses(price, rate, configuration)
            if price is not None
            else None,
        )

    def with_other_use(
        self,
        before: NodeCapacity,
        gpu_node: GPUNode,
        touched: Set[str],
        learned: "Learned",
    ) -> NodeCapacity:
        """Returns the node with new tenants on these GPUs and new requests of pods not
        yet bound.
        """
        view = before.node
        observed = {gpu.uuid: gpu for gpu in gpu_node.status.gpus if gpu.uuid in touched}
        unbound = self.not_yet_bound.get(view.name, HostUse())
        gpus = [
            self._gpu(observed[gpu.uuid], view.name, learned, gpu_node)
            if gpu.uuid in observed
            else gpu
            for gpu in before.gpus
        ]
        return changed(
            before,
            gpus=tuple(gpus),
            cpu_milli_free=view.cpu_milli_free - unbound.cpu_milli,
            memory_bytes_free=view.memory_bytes_free - unbound.memory_bytes,
            pods_free=view.pods_free - unbound.pods,
            without_jobs=self._without_jobs(view),
        )

    def _without_jobs(self, view: NodeView) -> HostUse:
        """Returns what other pods leave of the node."""
        jobs = self.bound.get(view.name, HostUse())
        return HostUse(
            min(view.cpu_milli_free + jobs.cpu_milli, view.cpu_milli_allocatable),
            min(view.memory_bytes_free + jobs.memory_bytes, view.memory_bytes_allocatable),
            min(view.pods_free + jobs.pods, view.pods_allocatable),
        )

    def _gpu(self, gpu: GPU, node: str, learned: "Learned", gpu_node: GPUNode) -> GPUCapacity:
        observed_at = gpu_node.status.observed_at
        tenants = self.tenants.get((node, gpu.uuid), ())
        own = self._processes(gpu, tenants)
        used_bytes = sum([each.memory_bytes for processes in own.values() for each in processes])
        external_bytes = max(0, gpu.memory_used_bytes - used_bytes)
        stale = self.gpus_of_stale_pods
        stray_pod = bool(stale) and ((node, gpu.uuid) in stale or ("", gpu.uuid) in stale)
        return GPUCapacity(
            uuid=gpu.uuid,
            model=gpu.model,
            total_bytes=gpu.memory_total_bytes,
            driver_bytes=gpu.memory_reserved_bytes,
            external_bytes=external_bytes,
            terminating_bytes=min(self._terminating_bytes(gpu, observed_at), external_bytes),
            tenants=tuple(_with_excess(one, own[one.job_uid]) for one in tenants),
            blocked=why_blocked(
                gpu, stray_pod=stray_pod, suspect=learned.suspects.get((node, gpu.uuid), "")
            ),
            link_group=gpu.link_group,
            law=learned.laws.get(gpu.model, PUBLISHED_SLOWDOWNS),
        )

    def _processes(self, gpu: GPU, tenants: Sequence[Tenant]) -> dict[str, list[GPUProcess]]:
        """Returns each tenant's processes on the GPU, by job UID."""
        found: dict[str, list[GPUProcess]] = {tenant.job_uid: [] for tenant in tenants}
        for process in gpu.processes:
            for job_uid in self.owners.get(process.pod_uid or "", ())[:1]:
                if job_uid in found:
                    found[job_uid].append(process)
        return found

    def _terminating_bytes(self, gpu: GPU, observed_at: datetime | None) -> int:
        """Returns the memory of finished pods that the reading still shows and the next one will
        not.
        """
        return sum(
            process.memory_bytes
            for process in gpu.processes
            if any(
                _is_before(observed_at, pod.at) for pod in self.ended.get(process.pod_uid or "", ())
            )
        )


def _count_pods(
    by_node: dict[str, HostUse], workers: Sequence[tuple[str, int, int]], sign: int
) -> None:
    """Adds these workers to what is used of their nodes, or subtracts them."""
    for node, cpu, memory in workers:
        had = by_node.get(node, HostUse())
        left = HostUse(
            had.cpu_milli + sign * cpu, had.memory_bytes + sign * memory, had.pods + sign
        )
        by_node[node] = left
        if not left.pods:
            # Names of nodes change over time.
            del by_node[node]


def _is_before(observed_at: datetime | None, ended_at: datetime | None) -> bool:
    """Returns whether the reading was taken before the pod's end, within clock differences.

    Memory in a later reading was left behind by the pod.
    """
    if observed_at is None or ended_at is None:
        return True
    return observed_at <= ended_at + timedelta(seconds=CLOCKS_DIFFER_SECONDS)


def _with_excess(tenant: Tenant, processes: Sequence[GPUProcess]) -> Tenant:
    """Returns the tenant with what its processes use above its reservation."""
    excess_bytes = sum([each.memory_bytes for each in processes]) - tenant.memory_bytes
    if excess_bytes <= 0:
        return tenant
    return replace(
        tenant,
        excess_bytes=excess_bytes,
        estimated_bytes=sum([each.memory_bytes for each in processes if each.memory_estimated]),
        context_bytes=context_bytes([each.memory_bytes for each in processes]),
    )


def _keep(groups: dict[K, tuple[T, ...]], key: K, left: tuple[T, ...]) -> None:
    """Stores a group. An empty group is removed, because keys change over time."""
    if left:
        groups[key] = left
    else:
        groups.pop(key, None)


def _without(group: tuple[T, ...], one: T) -> tuple[T, ...]:
    """Returns the group without one of these items, wherever it is."""
    if one not in group:
        return group
    at = group.index(one)
    return (*group[:at], *group[at + 1 :])
