"""The proof of a choice: requests to the batcher and the backend, in a process of their own."""

from pathlib import Path

from torch import nn

from gpujob_api.serving import Objective, ServingSettings
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.backends.build import FILES, build, load_file
from gpujob_worker.serving.batcher import Batcher
from gpujob_worker.serving.choosing.assignment import Assignment
from gpujob_worker.serving.choosing.choose import OBJECTIVE_SHARE
from gpujob_worker.serving.choosing.requests import Load, Seen, moments, send
from gpujob_worker.serving.choosing.timing import Timing
from gpujob_worker.serving.rows import count, rows_of
from gpujob_worker.serving.signature import Signature

# Without an expected rate: the part of its own capacity at which a backend has to keep the
# objective.
CAPACITY_SHARE = 0.6
# Of that rate. Requests of a sender in the same process take processor time from the backend:
# above, the proof would be one of the sender.
ASSUMED_RATE_MAX = 1000.0
_WARM_UP_SECONDS = 2.0
_SAMPLES_SENT = 64


def load_for(timing: Timing, settings: ServingSettings) -> Load:
    """Returns the requests that prove a plan: at the expected rate, or at a part of its
    capacity.
    """
    if settings.expected_rate:
        return Load(settings.expected_rate)
    capacity = samples_per_second(timing, settings.objective)
    return Load(min(ASSUMED_RATE_MAX, CAPACITY_SHARE * capacity))


def samples_per_second(timing: Timing, objective: Objective) -> float:
    """Returns the throughput at the best size within the objective, 0 without one. A request that
    just missed a batch waits for its end.
    """
    most_seconds = OBJECTIVE_SHARE * objective.latency_milliseconds / 1000
    within = (
        one.size / max(one.seconds, 1e-9)
        for one in timing.sizes
        if one.seconds + max(one.seconds, one.p99_seconds) <= most_seconds
    )
    return max(within, default=0.0)


def answered(
    assignment: Assignment, load: Load, model: nn.Module, shape: Signature, inputs: Tensors
) -> Seen:
    """Returns what became of the requests. Raises what the build raises."""
    settings = assignment.settings
    batcher = Batcher(
        _backend(assignment, model, shape, inputs), settings.objective, settings.batching
    )
    batcher.warm_up(inputs, _WARM_UP_SECONDS)
    batcher.start()
    try:
        sent = [rows_of(inputs, [row]) for row in range(min(_SAMPLES_SENT, count(inputs)))]
        return send(batcher, sent, moments(load), settings.objective.latency_milliseconds / 1000)
    finally:
        batcher.close()


def _backend(
    assignment: Assignment, model: nn.Module, shape: Signature, inputs: Tensors
) -> Backend:
    """Returns the backend from the file that the measurement left, or built again."""
    plan, folder = assignment.plan, Path(assignment.folder)
    name = FILES.get(plan.backend)
    if name is not None and (folder / name).is_file():
        return load_file(plan, folder / name, shape, model, assignment.sizes)
    again = folder / "again"
    again.mkdir(exist_ok=True)
    return build(plan, model, shape, inputs, assignment.sizes, again)
