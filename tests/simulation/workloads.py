"""What jobs really do, which the operator can only find out by measuring; and a seed's jobs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any

from gpujob_api.meta import API_VERSION
from gpujob_api.quantities import GIB, MIB
from gpujob_api.report import FailureClass
from tests.harness.builders import NAMESPACE
from tests.simulation.faults import FAULTS_END_SECONDS
from tests.simulation.hostile import FOREIGN_FINALIZER, ODD_MESSAGES, Impostor, make_impostors
from tests.simulation.lies import WorkerLie
from tests.simulation.pod_starts import NEVER_SECONDS, NodeRefusal
from tests.simulation.pods import SIDECAR
from tests.simulation.quotas import PodQuota
from tests.simulation.troubles import Trouble, TroubleKind

if TYPE_CHECKING:
    from tests.simulation.service_worlds import ServicePlan

OTHER_NAMESPACE = "other"
NAMESPACES = (NAMESPACE, OTHER_NAMESPACE)
ANY_END = "any"
FIRST_ATTEMPTS = 1
EVERY_ATTEMPT = 1000


class Farewell(Enum):
    """What a script says that saves by itself when it is asked to end, and ends with 0."""

    NOTHING = "nothing"
    # A clean end, in a loop whose steps nobody can count.
    FINISHED = "finished"
    # A clean end before its last step.
    COUNTED = "counted"
    # That it was asked to end.
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Workload:
    """The truth about a job. `expected` is how it ends without time-dependent luck."""

    memory_bytes: int = 4 * GIB
    utilization_percent: float = 20.0
    step_seconds: float = 1.0
    steps: int = 40
    checkpoint_steps: int = 10
    checkpoint_seconds: float = 1.0
    failure: FailureClass | None = None
    fail_at_step: int = 0
    failing_attempts: int = 0
    hang_at_step: int = 0
    hanging_attempts: int = 0
    leak_bytes_per_second: int = 0
    # It needs more from this step on, as an evaluation does.
    later_bytes: int = 0
    later_at_step: int = 0
    # It has no library that keeps it to the cap that it was given.
    ignores_cap: bool = False
    # The kernel kills it for memory of the host.
    host_out_of_memory: bool = False
    # What its worker says that is not so.
    lie: WorkerLie | None = None
    # What its kernels bring about breaks every GPU that it runs on, at its first step.
    breaks_gpus: bool = False
    # Somebody resets each of them so long afterwards; None: nobody does.
    repaired_after_seconds: float | None = None
    # The driver tells of this error when an attempt fails.
    failing_xid: int = 0
    ignores_sigterm: bool = False
    # It handles SIGTERM itself, and ends with 0.
    farewell: Farewell | None = None
    is_silent: bool = False
    # Where its volume can be used, by node; empty: everywhere.
    volume_nodes: tuple[str, ...] = ()
    # Whether its claim is bound before its first pod; otherwise kube-scheduler alone knows where.
    volume_is_bound: bool = True
    # Nodes on which kube-scheduler finds no room for its pods, which nobody else knows.
    refusal: NodeRefusal | None = None
    # kube-scheduler takes one of its workers on a node, and its template does not say why.
    one_on_a_node: bool = False
    # How long a node takes to pull its image for the first time.
    pull_seconds: float = 0.0
    # Why its container cannot be started, in the kubelet's word, and until when.
    cannot_start: str = ""
    cannot_start_until: float = NEVER_SECONDS
    has_executable: bool = True
    # What the process leaves as its termination message instead of a report.
    final_text: str = ""
    expected: str = "Succeeded"

    @property
    def is_healthy(self) -> bool:
        return not (self.failing_attempts or self.hanging_attempts or self.leak_bytes_per_second)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that a user submits at a time, and what the user does to it later."""

    name: str
    at: float
    spec: dict[str, Any]
    workload: Workload
    delete_at: float | None = None
    suspend_at: float | None = None
    resume_at: float | None = None
    namespace: str = NAMESPACE
    # Somebody's finalizer keeps the object when it is deleted, for ever.
    finalizer: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def deleted_for_good(self) -> bool:
        return bool(self.finalizer) and self.delete_at is not None


@dataclass(frozen=True, slots=True)
class Scenario:
    nodes: tuple[NodePlan, ...]
    submissions: tuple[Submission, ...]
    troubles: tuple[Trouble, ...] = ()
    impostors: tuple[Impostor, ...] = ()
    queues: tuple[dict[str, Any], ...] = field(default_factory=lambda: (make_queue("default"),))
    quotas: tuple[PodQuota, ...] = ()
    services: tuple[ServicePlan, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePlan:
    name: str
    gpus: int
    spot: bool = False
    card_bytes: int = 24 * GIB
    driver_bytes: int = 300 * MIB
    cpu: int = 32


def make_queue(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUQueue",
        "metadata": {"name": name},
        "spec": spec,
    }


def make_spec(
    workload_name: str, *, sidecar: bool = False, grace_seconds: int | None = None, **fields: Any
) -> dict[str, Any]:
    """The spec as a user writes it. Jobs of the same workload have the same command."""
    worker = {
        "name": "worker",
        "image": "image:1",
        "command": ["train", workload_name],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    pod: dict[str, Any] = {"containers": [worker]}
    if sidecar:
        pod["containers"].append({"name": SIDECAR, "image": "proxy:1"})
    if grace_seconds is not None:
        pod["terminationGracePeriodSeconds"] = grace_seconds
    return {
        "template": {"spec": pod},
        "checkpoint": {"volumeClaimName": "checkpoints"},
        "retry": {"limit": 3, "hangTimeoutSeconds": 120},
        **fields,
    }


def _healthy(random: Random) -> Workload:
    return Workload(
        memory_bytes=random.choice([2, 3, 5, 8]) * GIB,
        utilization_percent=random.choice([10.0, 20.0, 35.0, 60.0]),
        step_seconds=random.choice([0.5, 1.0, 2.0]),
        steps=random.randint(15, 60),
        checkpoint_steps=random.choice([5, 10, 1000]),
        checkpoint_seconds=random.choice([0.5, 3.0, 20.0]),
        ignores_sigterm=random.random() < 0.1,
        is_silent=random.random() < 0.1,
    )


def _failing(random: Random, **changes: Any) -> Workload:
    defaults: dict[str, Any] = {"failing_attempts": EVERY_ATTEMPT, "expected": "Failed"}
    return Workload(steps=random.randint(20, 50), **{**defaults, **changes})


def _kinds(random: Random) -> list[tuple[int, dict[str, Any], Workload]]:
    """(weight, spec fields, truth) of the kinds of job."""
    user, unknown = FailureClass.USER_ERROR, FailureClass.UNKNOWN
    out_of_memory = FailureClass.OUT_OF_MEMORY
    odd = random.choice(ODD_MESSAGES)
    once = {"failing_attempts": FIRST_ATTEMPTS, "expected": "Succeeded"}
    hint = {"gpu": {"memory": "4Gi"}, "sharing": {"mode": "Shared"}}
    return [
        (8, {}, _healthy(random)),
        (2, {"priority": random.choice([-5, 5])}, _healthy(random)),
        (2, {"workers": 2}, _healthy(random)),
        (1, {"gpusPerWorker": 2}, _healthy(random)),
        (2, {"sharing": {"mode": "Exclusive"}}, _healthy(random)),
        (2, hint, Workload(memory_bytes=3 * GIB, steps=30)),
        (1, hint, _failing(random, memory_bytes=6 * GIB, failing_attempts=0)),
        (1, {"spot": {"policy": random.choice(["Never", "Prefer"])}}, _healthy(random)),
        (1, {}, _failing(random, failure=user, fail_at_step=0)),
        (1, {}, _failing(random, failure=unknown, fail_at_step=7)),
        (1, {}, _failing(random, failure=unknown, fail_at_step=5, **once)),
        (1, {}, _failing(random, failure=out_of_memory, fail_at_step=6, **once)),
        (1, {}, Workload(hang_at_step=5, hanging_attempts=FIRST_ATTEMPTS)),
        (1, {"gpu": {"models": ["none-such"]}}, Workload(expected="Pending")),
        (1, {"gpu": {"memory": "90Gi"}}, Workload(expected="Pending")),
        (1, {"gpusPerWorker": 9}, Workload(expected="Pending")),
        (1, {}, Workload(memory_bytes=23 * GIB, steps=25)),
        (2, {"sidecar": True}, _healthy(random)),
        (1, {"sidecar": True, "workers": 2}, _healthy(random)),
        (1, {"sidecar": True}, _failing(random, failure=unknown, fail_at_step=5, **once)),
        (2, {"grace_seconds": random.choice([2, 5, 120, 300])}, _healthy(random)),
        (1, {}, _failing(random, failure=unknown, fail_at_step=3, final_text=odd)),
    ]


def _later(random: Random, at: float, workload: Workload) -> tuple[Workload, dict[str, Any]]:
    """What the user does to the job afterwards."""
    luck = random.random()
    if luck < 0.08:
        return workload, {"delete_at": at + random.uniform(0, 150)}
    if luck > 0.92:
        deleted = {"delete_at": at + random.uniform(0, 150), "finalizer": FOREIGN_FINALIZER}
        return replace(workload, expected=ANY_END), deleted
    if luck < 0.16:
        start = at + random.uniform(0, 60)
        return workload, {"suspend_at": start, "resume_at": start + random.uniform(1, 120)}
    return workload, {}


def make_scenario(seed: int) -> Scenario:
    """Two to three nodes, and five to nine jobs in two namespaces; some have the same name."""
    random = Random(seed * 7919 + 1)
    nodes = [NodePlan("n0", random.choice([1, 2])), NodePlan("n1", 2)]
    if random.random() < 0.6:
        nodes.append(NodePlan("spot0", random.choice([1, 2]), spot=True))
    submissions: list[Submission] = []
    for number in range(random.randint(5, 9)):
        kinds = _kinds(random)
        weights = [weight for weight, _, _ in kinds]
        _, fields, workload = random.choices(kinds, weights)[0]
        at = random.choice([0.0, random.uniform(0, 20), random.uniform(0, 120)])
        alone = workload
        workload, later = _later(random, at, workload)
        name, namespace = f"job{number // 2}", NAMESPACES[number % 2]
        spec = make_spec(f"job{number}", **fields)
        submissions.append(Submission(name, at, spec, workload, **later, namespace=namespace))
        if random.random() < 0.15:
            # It is another job: what the user does to the first does not happen to it.
            twin = Submission(f"{name}b", at + 40, spec, alone, namespace=namespace)
            submissions.append(twin)
    return Scenario(
        tuple(nodes),
        tuple(submissions),
        tuple(_troubles(random, submissions)),
        tuple(make_impostors(random, FAULTS_END_SECONDS)),
    )


def _troubles(random: Random, submissions: list[Submission]) -> list[Trouble]:
    """What one namespace, or one of its jobs, suffers for a while; some seeds have nothing."""
    found: list[Trouble] = []
    for _ in range(random.choice([0, 0, 1, 2])):
        start = random.uniform(0, FAULTS_END_SECONDS / 2)
        found.append(make_trouble(random, random.choice(submissions), start))
    return found


def make_trouble(
    random: Random,
    victim: Submission,
    start: float,
    kind: TroubleKind | None = None,
    seconds: float | None = None,
) -> Trouble:
    """Of the victim's namespace; of the victim alone where an object is too large."""
    kind = kind or random.choice(list(TroubleKind))
    alone = kind is TroubleKind.TOO_LARGE or random.random() < 0.3
    lasts = random.uniform(10, FAULTS_END_SECONDS / 2) if seconds is None else seconds
    return Trouble(
        kind,
        victim.namespace,
        start,
        min(start + lasts, FAULTS_END_SECONDS),
        victim.name if alone else "",
        random.choice([0.8, 3.0, 6.0]),
    )


def make_crowded_scenario(seed: int) -> Scenario:
    """Many jobs for two GPUs, stopped and started again all the time."""
    random = Random(seed * 6_700_417 + 4)
    submissions: list[Submission] = []
    for number in range(9):
        workload = Workload(
            memory_bytes=random.choice([3, 6, 9]) * GIB,
            steps=random.randint(15, 40),
            utilization_percent=10.0,
            ignores_sigterm=random.random() < 0.4,
        )
        fields: dict[str, Any] = {"sharing": {"mode": "Exclusive"}} if number % 3 == 2 else {}
        at = random.uniform(0, 60)
        suspend = at + random.uniform(5, 60) if random.random() < 0.4 else None
        resume = None if suspend is None else suspend + random.uniform(1, 30)
        spec = make_spec("same" if number % 3 == 0 else f"job{number}", **fields)
        submissions.append(
            Submission(
                f"job{number}",
                at,
                spec,
                workload,
                delete_at=at + 30 if number == 1 else None,
                suspend_at=suspend,
                resume_at=resume,
                namespace=NAMESPACES[number % 2],
            )
        )
    return Scenario((NodePlan("n0", 1), NodePlan("n1", 1)), tuple(submissions))
