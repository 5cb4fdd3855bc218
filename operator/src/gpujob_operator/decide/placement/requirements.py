"""What a pending job requires of nodes and GPUs, for placement and for explanations."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, Reservation, ReservationSource, SharingMode, SpotPolicy
from gpujob_api.gpuprofile import GPUProfile, ProfileEntry
from gpujob_api.quantities import MIB
from gpujob_api.start_refusal import StartRefusal
from gpujob_operator.decide.capacity.cluster import Capacity
from gpujob_operator.decide.capacity.leaving import LeavingPods
from gpujob_operator.decide.measurement.reservation import (
    breaks_gpus,
    is_settled,
    profile_entry,
    ran_out_of_memory,
    wanted_reservation,
)
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.gang_spread import SpreadRule, one_on_a_node, spread_rules
from gpujob_operator.decide.model.held_gpus import known_context_bytes
from gpujob_operator.decide.model.node_affinity import (
    NodeAffinity,
    preferred_affinity,
    required_affinity,
    volume_affinity,
    with_preferences,
)
from gpujob_operator.decide.model.pod_requests import (
    OtherRequests,
    PodRequests,
    other_requests,
)
from gpujob_operator.decide.model.pod_template import (
    DEFAULT_AND_SPOT_TOLERATIONS,
    DEFAULT_TOLERATIONS,
    host_requests,
    pod_spec,
    tolerations,
)
from gpujob_operator.decide.model.protection import Unprotected, kept_off_spot
from gpujob_operator.decide.model.snapshot import BoundVolume
from gpujob_operator.decide.model.spec_refusals import current_refusals
from gpujob_operator.decide.packing.demand import Demand
from gpujob_operator.decide.packing.party import ANYBODY, Party
from gpujob_operator.decide.placement.step_cost import step_of

# Free memory that an unmeasured job needs, so that a GPU full of unmanaged processes is excluded.
UNKNOWN_BYTES = 256 * MIB
_TOLERATION_FIELDS = ("key", "operator", "value", "effect")


# No slots, because placed jobs never need their signature, which is computed on demand.
@dataclass(frozen=True)
class JobRequirements:
    """Requirements of each worker of a job. `hint_bytes` is 0 without a hint."""

    job: GPUJob
    profile: GPUProfile | None
    cpu_milli: int
    memory_bytes: int
    hint_bytes: int
    exclusive: bool
    # Whether the job's own measurement shows what it needs.
    measured: bool
    selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    affinity: NodeAffinity = ()
    # Requests of other resources than CPU and memory that kube-scheduler refused for lack of them.
    refused_others: OtherRequests = ()
    # Counts only if the job fits on such a node.
    preferred: NodeAffinity = ()
    # What the volumes of its claims require of nodes, with the claim's name.
    volumes: tuple[tuple[str, NodeAffinity], ...] = ()
    # Nodes that recently refused its pods, with the messages.
    refused_by: tuple[StartRefusal, ...] = ()
    # How its workers must be spread, from its template.
    template_spread: tuple[SpreadRule, ...] = ()
    # The owner of the job for the purpose of sharing GPUs.
    party: Party = ANYBODY
    # Why it uses no spot nodes although it prefers them.
    kept_off_spot: Unprotected | None = None
    # GPU models on which its queue has quota for it. None: all that the job accepts.
    models_within_quota: tuple[str, ...] | None = None

    @property
    def spot(self) -> SpotPolicy:
        """The spot policy by which the job is placed."""
        return SpotPolicy.NEVER if self.kept_off_spot else self.job.spec.spot.policy

    def models(self, capacity: Capacity) -> list[str]:
        """Returns the cluster's GPU models on which the job may be placed."""
        accepted, within = capacity.models(self.job.spec.gpu.models), self.models_within_quota
        return accepted if within is None else [one for one in accepted if one in within]

    def at(self, now: datetime) -> "JobRequirements":
        """Returns the requirements at this time, without expired refusals of nodes."""
        if not self.refused_by or all(one.until > now for one in self.refused_by):
            return self
        held = tuple(one for one in self.refused_by if one.until > now)
        return replace(self, refused_by=held)

    @cached_property
    def spread(self) -> tuple[SpreadRule, ...]:
        """How the workers must be spread. They are also spread if one node refused two of them
        together.
        """
        refused = next((one for one in self.refused_by if one.node in one.beside), None)
        if refused is None:
            return self.template_spread
        return (*self.template_spread, one_on_a_node(refused.message))

    @cached_property
    def refused_sets(self) -> frozenset[frozenset[str]]:
        """Sets of nodes that were refused together. Each node alone may still work."""
        refused = [one for one in self.refused_by if one.beside and one.node not in one.beside]
        return frozenset(frozenset((one.node or "", *one.beside)) for one in refused)

    @cached_property
    def with_tried_nodes(self) -> "JobRequirements":
        """The requirements including the nodes that were refused only together with others."""
        alone = tuple(one for one in self.refused_by if not one.beside or one.node in one.beside)
        return replace(self, refused_by=alone)

    @cached_property
    def on_preferred_nodes(self) -> "JobRequirements":
        """The requirements with all preferences of nodes as requirements."""
        return replace(self, affinity=with_preferences(self.affinity, self.preferred), preferred=())

    def believing(self, gpu_model: str, largest_bytes: int) -> "JobRequirements":
        """Returns the requirements without measurements that exceed the largest GPU of this model.

        Such a measurement comes from a faulty agent. The job then counts as never measured.
        """
        if not largest_bytes:
            return self
        measured, entry = self.job.status.measurement, profile_entry(self.profile, gpu_model)
        if measured is not None:
            refuted = measured.device == gpu_model and measured.memory_bytes > largest_bytes
            return self._unmeasured.believing(gpu_model, largest_bytes) if refuted else self
        if entry is None or entry.memory_bytes <= largest_bytes:
            return self
        return replace(self, profile=None)

    @cached_property
    def _unmeasured(self) -> "JobRequirements":
        status = changed(self.job.status, measurement=None)
        return replace(self, job=replace(self.job, status=status), measured=False)

    @cached_property
    def scheduling_signature(self) -> Hashable:
        """Equal for jobs that fit or do not fit together, so that thousands of jobs need one
        answer.

        It has plain values only, because it is hashed several times for each job.
        """
        job, sharing = self.job, self.job.spec.sharing
        measured = job.status.measurement
        return (
            (self.cpu_milli, self.memory_bytes, self.hint_bytes, self.exclusive),
            self.node_constraints,
            self.template_spread,
            self.party,
            (job.spec.workers, job.spec.gpus_per_worker, job.spec.gpu.models),
            self.models_within_quota,
            (sharing.mode.value, sharing.max_slowdown_percent),
            _known(self.profile.status.entries) if self.profile is not None else None,
            (measured.memory_bytes, measured.utilization_percent, measured.device, self.measured)
            if measured
            else None,
            known_context_bytes(measured),
            (ran_out_of_memory(job), job.status.utilization_floor_percent),
            breaks_gpus(job),
        )

    @cached_property
    def node_constraints(self) -> Hashable:
        """The constraints that `why_not_on` checks."""
        selector = tuple(sorted(self.selector.items()))
        tolerated = _COMMON_KEYS.get(id(self.tolerations))
        if tolerated is None:
            tolerated = tuple(map(_toleration_key, self.tolerations))
        policy = self.kept_off_spot or self.job.spec.spot.policy
        places = selector, self.affinity, self.volumes, tolerated
        return places, policy.value, self.refused_by, self.refused_others

    def reservation(
        self, gpu_model: str, largest_bytes: int, configuration: Configuration
    ) -> Reservation | None:
        """Returns the reservation on a GPU of this model, or None for the whole GPU.

        A job that fits on the largest GPU only without its margin gets the whole GPU.
        """
        entry = profile_entry(self.profile, gpu_model)
        wanted = wanted_reservation(self.job, entry, configuration)
        floor = self.job.status.utilization_floor_percent
        if wanted is not None and wanted.utilization_percent < floor:
            wanted = replace(wanted, utilization_percent=floor)
        if wanted is None:
            return None
        if wanted.source is ReservationSource.HINT:
            # The job's context excludes no GPU on which its cap fits.
            most_bytes = max(self.hint_bytes, largest_bytes)
            return replace(wanted, memory_bytes=min(wanted.memory_bytes, most_bytes))
        known = self.known_bytes(gpu_model)
        return None if known <= largest_bytes < wanted.memory_bytes else wanted

    def known_bytes(self, gpu_model: str) -> int:
        """Returns the minimum memory that a GPU must have by hint or measurement, or 0 without
        either.
        """
        known = self.job.status.measurement or profile_entry(self.profile, gpu_model)
        return max(self.hint_bytes, known.memory_bytes if known is not None else 0)

    def least_bytes(self, gpu_model: str, wanted: Reservation | None) -> int:
        """Returns the memory that a GPU must offer for this reservation, in bytes."""
        if wanted is not None:
            return max(wanted.memory_bytes, 1)
        return self.known_bytes(gpu_model) or UNKNOWN_BYTES

    def demand(self, gpu_model: str, wanted: Reservation | None) -> Demand:
        """Returns the request of one worker for placement. A whole GPU counts as fully used."""
        return Demand(
            cpu_milli=self.cpu_milli,
            memory_bytes=self.memory_bytes,
            gpus=self.job.spec.gpus_per_worker,
            gpu_memory_bytes=self.least_bytes(gpu_model, wanted),
            utilization_percent=100.0 if wanted is None else wanted.utilization_percent,
            exclusive=wanted is None,
            models=frozenset({gpu_model}),
        )


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What one worker of a job requests of GPUs of one model. Create it with `resolve`."""

    requirements: JobRequirements
    model: str
    # The reservation. None: a whole GPU.
    wanted: Reservation | None
    # The memory that a GPU must offer.
    least_bytes: int

    @property
    def demand(self) -> Demand:
        return self.requirements.demand(self.model, self.wanted)

    @property
    def exclusive(self) -> bool:
        return self.requirements.exclusive

    @property
    def max_slowdown_percent(self) -> int:
        return self.requirements.job.spec.sharing.max_slowdown_percent


def resolve(
    requirements: JobRequirements, model: str, capacity: Capacity, configuration: Configuration
) -> WorkerRequest:
    """Returns the request on the model's GPUs as they are now."""
    largest_bytes = capacity.largest_bytes(model)
    requirements = requirements.believing(model, largest_bytes)
    wanted = requirements.reservation(model, largest_bytes, configuration)
    return WorkerRequest(requirements, model, wanted, requirements.least_bytes(model, wanted))


# No slots, because the running jobs are computed on demand.
@dataclass(frozen=True)
class CycleView:
    """What the admission pass needs about all jobs, apart from their GPUs."""

    # Requirements by job UID.
    requirements_of: Callable[[str], JobRequirements]
    # Jobs with a reservation, by UID, as they are after this cycle's step.
    find_running: Callable[[], Mapping[str, GPUJob]]
    # Jobs whose reservation ends with this cycle's step and counts until the next cycle.
    find_ended: Callable[[], Sequence[GPUJob]]
    # The lowest priority of jobs with a reservation, by queue, and whether any such job is being
    # preempted.
    lowest_priorities: Mapping[str, int]
    preemption_in_flight: bool
    # Pods of deleted jobs that end within their grace.
    find_leaving: Callable[[], LeavingPods] = LeavingPods

    @cached_property
    def running(self) -> Mapping[str, GPUJob]:
        return self.find_running()

    @cached_property
    def leaving(self) -> LeavingPods:
        return self.find_leaving()

    @cached_property
    def ended(self) -> Sequence[GPUJob]:
        return self.find_ended()


def _toleration_key(toleration: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns what distinguishes tolerations. Values may be anything that the template contains."""
    return tuple([repr(toleration.get(name)) for name in _TOLERATION_FIELDS])


# By identity, because most jobs have one of the two tuples.
_COMMON_KEYS = {
    id(common): tuple(map(_toleration_key, common))
    for common in (DEFAULT_TOLERATIONS, DEFAULT_AND_SPOT_TOLERATIONS)
}


def _known(entries: tuple[ProfileEntry, ...]) -> Hashable:
    """Returns the part of a profile that placement reads."""
    return tuple((e.gpu_model, e.memory_bytes, e.utilization_percent, *step_of(e)) for e in entries)


def requirements_of(
    job: GPUJob,
    profile: GPUProfile | None,
    configuration: Configuration | None = None,
    requests: PodRequests | None = None,
    party: Party = ANYBODY,
    volumes: tuple[BoundVolume, ...] = (),
) -> JobRequirements:
    """Returns the job's requirements. A `configuration` of None means the default configuration.

    `requests` are the requests of its worker, if already read. `volumes` are those that its claims
    are bound to.
    """
    cpu, memory = requests or host_requests(job)
    hint, template = job.spec.gpu.memory, pod_spec(job)
    measured = job.status.measurement
    has_measured = measured is not None and is_settled(measured, configuration or Configuration())
    return JobRequirements(
        job=job,
        profile=profile,
        cpu_milli=cpu,
        memory_bytes=memory,
        hint_bytes=hint.bytes if hint is not None else 0,
        exclusive=job.spec.sharing.mode is SharingMode.EXCLUSIVE,
        measured=has_measured,
        selector=template.get("nodeSelector") or {},
        tolerations=tolerations(job),
        affinity=required_affinity(template),
        refused_others=_refused_others(job, template),
        preferred=preferred_affinity(template),
        volumes=tuple((one.claim, volume_affinity(one.node_selector)) for one in volumes),
        refused_by=tuple([one for one in current_refusals(job) if one.node is not None]),
        template_spread=spread_rules(job),
        party=party,
        kept_off_spot=kept_off_spot(job, configuration or Configuration()),
    )


def _refused_others(job: GPUJob, template: Mapping[str, Any]) -> OtherRequests:
    """Returns the requests for lack of which kube-scheduler refused the job's pods.

    Before a refusal, a node without the resource may still offer it, by a driver of dynamic
    resource allocation or by an extender of kube-scheduler.
    """
    words = [one.message for one in current_refusals(job) if "Insufficient " in one.message]
    if not words:
        return ()
    return tuple(
        (name, amount)
        for name, amount in other_requests(template)
        if re.search(rf"Insufficient {re.escape(name)}(?![\w/-]|\.\w)", "\n".join(words))
    )


def demand_of(
    requirements: JobRequirements, capacity: Capacity, configuration: Configuration
) -> Demand:
    """Returns the request of one worker of the job.

    It comes from the requirements while the job is pending, and from the reservation once it is
    placed.
    """
    wanted = requirements.job.spec.gpu.models
    models = capacity.models(wanted)
    placement, held = requirements.job.status.placement, requirements.job.status.reservation
    if placement is not None and held is not None:
        whole = held.source is ReservationSource.WHOLE_GPU
        demand = requirements.demand(placement.gpu_model, None if whole else held)
    else:
        demand = resolve(requirements, next(iter(models), ""), capacity, configuration).demand
    # A name that means no model restricts the job all the same.
    return changed(demand, models=frozenset((models or wanted) if wanted else ()))
