"""Explains with numbers why a job fits nowhere now, by counting GPUs by the reason that excludes
them.

A node's findings hold while the node is the same object. They are kept for the next cycle, because
thousands of pending jobs repeat the question.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpujob_api.quantities import format_count, format_memory
from gpujob_api.start_refusal import StartRefusal
from gpujob_operator.decide.capacity.cluster import Capacity, GPUCapacity, NodeCapacity
from gpujob_operator.decide.model.pod_requests import WHOLE_NODE
from gpujob_operator.decide.packing.apart import take_apart
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.finding import (
    FARTHEST,
    NO_DIAGNOSIS,
    NO_GPUS,
    NodeDiagnosis,
    UnfitReason,
)
from gpujob_operator.decide.placement.gpu_filter import EXTERNAL_USE, render_reason, why_not
from gpujob_operator.decide.placement.memo import Memo
from gpujob_operator.decide.placement.node_filter import (
    avoided_text,
    is_temporary,
    node_mismatch,
    spread_limits,
    why_not_on,
)
from gpujob_operator.decide.placement.requirements import JobRequirements, WorkerRequest

# A GPU that fits, on a node that has too few of them.
_FREE = UnfitReason("free, but too few on one node")
# Another worker of the same gang would have it.
_OWN = UnfitReason("free for its other workers")
_UNREADABLE_REQUESTS = UnfitReason(
    "on nodes of any size: what the template's containers request cannot be read"
)
# The figure is in thousandths of a CPU core here, and in bytes below.
_CPU_SHORT = "on nodes short of {} milli-CPU"
_MEMORY_SHORT = "on nodes short of {} host memory"
_PODS_SHORT = UnfitReason("on nodes that take no more pods")
# Up to this number of refusals, each is told in its own words. Many differ only in the names of the
# pod and the node, and more would leave no room for what keeps the job from the other GPUs.
_REFUSALS_TOLD = 2


@dataclass(slots=True)
class Diagnosis:
    """Why a job does not fit. `could_ever_fit` is False if it can never fit on these GPUs.

    The message is rendered on demand, because most messages are never read.
    """

    could_ever_fit: bool
    describe: Callable[[], str]
    _message: str | None = None

    @property
    def message(self) -> str:
        if self._message is None:
            self._message = self.describe()
        return self._message


class NodeLack(NamedTuple):
    """What a node lacks, in words. Nodes that lack the same have equal `reasons`."""

    reasons: str
    closest: str = ""

    @property
    def text(self) -> str:
        return self.reasons + self.closest


def diagnose(
    request: WorkerRequest,
    assumed: AssumedCapacity,
    capacity: Capacity,
    placed: int,
) -> Diagnosis:
    """Returns the diagnosis on GPUs of one model.

    `placed` workers of the gang found a place, which `capacity` assumes.
    """
    # The state at the refusal, because the job's own nomination does not count. A reference to
    # `assumed`, which keeps the diagnosis, would be a cycle that only the garbage collector frees.
    nominated_on, memo = assumed.nominated_on, assumed.memo
    return Diagnosis(
        _could_ever_fit(request, assumed),
        lambda: _explain(request, capacity, nominated_on, memo, placed),
    )


def no_model(requirements: JobRequirements, assumed: AssumedCapacity) -> Diagnosis:
    """Returns the diagnosis if there is no GPU of a model that the job accepts."""
    present = sorted(assumed.capacity.largest)
    asked = requirements.job.spec.gpu.models
    wanted = ", ".join(asked) or "any"
    nodes = len(assumed.capacity.nodes)
    none = "no node has an agent"
    if nodes:
        none = f"the agents of {format_count(nodes, 'node')} show no GPU"
    have = ", ".join(present) or f"none, because {none}"
    message = f"no GPU of model {wanted}; models in the cluster: {have}"
    return Diagnosis(False, lambda: message)


def _could_ever_fit(request: WorkerRequest, assumed: AssumedCapacity) -> bool:
    """Returns whether the workers would fit on healthy GPUs without any other GPUJob."""
    requirements = request.requirements

    def find() -> bool:
        limits = [one for one in spread_limits(requirements, assumed.capacity) if one.skew is None]
        places = 0
        for name, node in assumed.capacity.nodes.items():
            misfit = _node_never(requirements, node)
            large = (
                c.total_bytes - c.driver_bytes >= request.least_bytes
                for c in node.gpus
                if c.model == request.model
            )
            count = 0 if misfit else sum(large) // requirements.job.spec.gpus_per_worker
            count = min(count, _hosted(requirements, node))
            if limits:
                count = sum(take_apart(name, limits) for _ in range(count))
            places += count
        return places >= requirements.job.spec.workers

    return assumed.memo.once(("possible", requirements.scheduling_signature, request.model), find)


def _hosted(requirements: JobRequirements, node: NodeCapacity) -> int:
    """Returns for how many workers an idle node has CPU, memory and pods."""
    view = node.node
    found = [view.pods_allocatable]
    if requirements.cpu_milli:
        found.append(view.cpu_milli_allocatable // requirements.cpu_milli)
    if requirements.memory_bytes:
        found.append(view.memory_bytes_allocatable // requirements.memory_bytes)
    return min(found)


def _node_never(requirements: JobRequirements, node: NodeCapacity) -> bool:
    """Returns whether the job is not allowed on this node. Temporary taints are left out."""
    view = node.node
    if any(map(is_temporary, view.taints)):
        view = replace(view, taints=tuple([one for one in view.taints if not is_temporary(one)]))
    return bool(node_mismatch(requirements, view))


def _explain(
    request: WorkerRequest,
    capacity: Capacity,
    nominated_on: Mapping[str, frozenset[str]],
    memo: Memo,
    placed: int,
) -> str:
    """Counts the GPUs by reason, and names the closest fit."""
    requirements = request.requirements
    counts, nearest = memo.findings(
        (requirements.scheduling_signature, request.model),
        capacity.nodes,
        nominated_on,
        lambda node, nominated: _diagnose_node(request, node, nominated),
    )
    total = sum(counts.values())
    asked = requirements.job.spec.gpus
    what = _request_text(request)
    gang = f" (capacity for {placed} of {requirements.job.spec.workers} workers)" if placed else ""
    counts = _with_few_refusals(counts, requirements.refused_by)
    message = f"needs {asked} x {what}{gang}; of {total} GPUs: {_in_words(counts)}"
    if requirements.spread:
        message += f"; its workers must lie apart ({requirements.spread[0].text})"
    missing_bytes, uuid, name = nearest
    return message + _nearest_text(missing_bytes, name, capacity.gpu(name, uuid))


def _with_few_refusals(
    counts: Mapping[UnfitReason, int], refused_by: Sequence[StartRefusal]
) -> Mapping[UnfitReason, int]:
    """Returns the counts with all avoided nodes under the newest refusal, if more than a few
    refused the job in words of their own.
    """
    findings = [render_reason(avoided_text(one)) for one in refused_by]
    told = dict.fromkeys(one for one in reversed(findings) if one in counts)
    if len(told) <= _REFUSALS_TOLD:
        return counts
    newest = next(iter(told)).text
    text = f"{newest} (the newest of {len(told)} refusals; status.startRefusals has all)"
    others = {one: count for one, count in counts.items() if one not in told}
    return {**others, UnfitReason(text): sum(counts[one] for one in told)}


def _in_words(counts: Mapping[UnfitReason, int]) -> str:
    """Returns the reasons, most frequent first. Reasons that differ only in a figure are merged."""
    gpus: Counter[str] = Counter()
    figures: dict[str, list[int]] = {}
    for finding, count in counts.items():
        gpus[finding.text] += count
        figures.setdefault(finding.text, []).append(finding.figure)
    return "; ".join(
        f"{gpus[text]} {_with_figures(text, min(figures[text]), max(figures[text]))}"
        for text in sorted(gpus, key=lambda text: (-gpus[text], text))
    )


def _with_figures(text: str, low: int, high: int) -> str:
    show = format_memory if text in (_MEMORY_SHORT, EXTERNAL_USE) else str
    return text.format(show(low) if low == high else f"{show(low)} to {show(high)}")


def _nearest_text(missing_bytes: int, node: str, gpu: GPUCapacity | None) -> str:
    if gpu is None:
        return ""
    free, total = format_memory(max(gpu.free_bytes, 0)), format_memory(gpu.total_bytes)
    where = f"{gpu.uuid} on {node} ({free} of {total} free"
    return f"; closest: {where}, {format_memory(missing_bytes)} short)"


def node_lacks(request: WorkerRequest, node: NodeCapacity) -> NodeLack | None:
    """Returns why one worker does not fit on this node, with numbers, or None if it fits."""
    if all(gpu.model != request.model for gpu in node.gpus):
        return NodeLack(f"no GPU of model {request.model}")
    found = _diagnose_node(request, node, NO_GPUS)
    count = request.requirements.job.spec.gpus_per_worker
    if found.counts.get(_FREE, 0) >= count:
        return None
    reasons = f"of {sum(found.counts.values())} GPUs: {_in_words(found.counts)}"
    missing_bytes, uuid, name = found.nearest
    return NodeLack(reasons, _nearest_text(missing_bytes, name, node.gpu(uuid)))


def _diagnose_node(
    request: WorkerRequest, node: NodeCapacity, nominated: frozenset[str]
) -> NodeDiagnosis:
    gpus = [gpu for gpu in node.gpus if gpu.model == request.model]
    if not gpus:
        return NO_DIAGNOSIS
    on_node = _node_unfit_reason(request.requirements, node)
    if on_node:
        return NodeDiagnosis({on_node: len(gpus)})
    counts: dict[UnfitReason, int] = {}
    nearest = FARTHEST
    own = request.requirements.job.metadata.uid
    for gpu in gpus:
        if any(tenant.job_uid == own for tenant in gpu.tenants):
            counts[_OWN] = counts.get(_OWN, 0) + 1
            continue
        finding, missing_bytes = why_not(request, gpu, nominated) or (_FREE, 0)
        counts[finding] = counts.get(finding, 0) + 1
        if 0 < missing_bytes <= nearest[0]:
            nearest = min(nearest, (missing_bytes, gpu.uuid, node.node.name))
    return NodeDiagnosis(counts, nearest)


def _node_unfit_reason(requirements: JobRequirements, node: NodeCapacity) -> UnfitReason | None:
    """Returns the reason that excludes all of the node's GPUs, or None."""
    refusal = node.closed.text if node.closed is not None else why_not_on(requirements, node.node)
    if refusal:
        return render_reason(refusal)
    if (requirements.cpu_milli, requirements.memory_bytes) == WHOLE_NODE:
        return _UNREADABLE_REQUESTS
    if node.cpu_milli_free < requirements.cpu_milli:
        return UnfitReason(_CPU_SHORT, requirements.cpu_milli - node.cpu_milli_free)
    if node.memory_bytes_free < requirements.memory_bytes:
        return UnfitReason(_MEMORY_SHORT, requirements.memory_bytes - node.memory_bytes_free)
    if node.pods_free < 1:
        return _PODS_SHORT
    return None


def _request_text(request: WorkerRequest) -> str:
    wanted = request.wanted
    if wanted is not None:
        return f"{format_memory(wanted.memory_bytes)} at {wanted.utilization_percent:.0f} %"
    known_bytes = request.requirements.known_bytes(request.model)
    least = f" of at least {format_memory(known_bytes)}" if known_bytes else ""
    return f"a whole GPU{least}"
