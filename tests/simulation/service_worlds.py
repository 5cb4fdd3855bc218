"""The GPUServices of a part of the seeds: what users ask for, and what their models are like."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from gpujob_api.quantities import GIB
from tests.simulation.quotas import PodQuota
from tests.simulation.workloads import NAMESPACES, Scenario, Workload

Spec = dict[str, Any]
SERVICE_SHARE = 0.25
# A seed with services takes hardly longer than another one.
JOBS_MAX = 5
# Also beside jobs that have not been measured.
BESIDE_OTHERS: Spec = {
    "gpu": {"memory": "4Gi"},
    "sharing": {"mode": "Shared", "maxSlowdownPercent": 100},
}
# From then on jobs have the cluster for themselves, until all of them have ended.
SERVICES_END_SECONDS = 270.0
# A gate, its successor, and a measurement of backends.
PODS_BESIDE_REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Model:
    """The truth about a service's replicas.

    `crashes` are exit codes of the first processes that begin, each with the seconds after which it
    ends by itself.
    """

    memory_bytes: int = 3 * GIB
    load_seconds: float = 4.0
    answer_seconds: float = 0.5
    # Of the device, for each request.
    busy_seconds: float = 0.2
    crashes: tuple[tuple[float, int], ...] = ()

    @property
    def workload(self) -> Workload:
        return Workload(self.memory_bytes, steps=1)


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """A service with its users: specs by the time from which they want them, None for no service.

    A client sends a request every `period_seconds`, but in the quiet times.
    """

    name: str
    namespace: str
    specs: tuple[tuple[float, Spec | None], ...]
    model: Model
    period_seconds: float = 3.0
    quiet: tuple[tuple[float, float], ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def wanted(self, now: float) -> Spec | None:
        """The spec that its users want."""
        found = [spec for at, spec in self.specs if at <= now]
        return found[-1] if found else None

    def is_quiet(self, now: float) -> bool:
        return any(start <= now < end for start, end in self.quiet)


def service_spec(name: str, minimum: int, maximum: int, **fields: Any) -> Spec:
    worker = {
        "name": "worker",
        "image": "image:1",
        "command": ["serve", name],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    return {
        "template": {"spec": {"containers": [worker]}},
        "replicas": {"minimum": minimum, "maximum": maximum},
        "optimize": {"backend": "Eager"},
        "suspend": False,
        **fields,
    }


def edited(spec: Spec, version: int) -> Spec:
    """The spec with another template."""
    (worker,) = spec["template"]["spec"]["containers"]
    return {
        **spec,
        "template": {"spec": {"containers": [{**worker, "image": f"image:{version}"}]}},
    }


def with_services(seed: int, scenario: Scenario) -> Scenario:
    """The scenario, of some seeds with one or two services."""
    random = Random(seed * 86_028_239 + 17)
    if random.random() >= SERVICE_SHARE:
        return scenario
    services = [_service(random, "chat", minimum=random.choice([1, 1, 2]))]
    if random.random() < 0.5:
        services.append(_service(random, "rare", minimum=0))
    if random.random() < 0.5:
        services = services[-1:]
    quotas = tuple(_raised(quota, services) for quota in scenario.quotas)
    jobs = scenario.submissions
    if len(jobs) > JOBS_MAX:
        jobs = tuple(sorted(random.sample(jobs, JOBS_MAX), key=lambda job: job.at))
    return replace(scenario, submissions=jobs, services=tuple(services), quotas=quotas)


def _raised(quota: PodQuota, services: list[ServicePlan]) -> PodQuota:
    """Replicas run until the end, so the jobs of the namespace need their pods beside them."""
    mine = [one for one in services if one.namespace == quota.namespace]
    most = [
        max(spec["replicas"]["maximum"] for _, spec in one.specs if spec is not None)
        for one in mine
    ]
    return replace(quota, pods=quota.pods + sum(most) + (1 + PODS_BESIDE_REPLICAS) * len(mine))


def _service(random: Random, name: str, minimum: int) -> ServicePlan:
    at = random.choice([0.0, random.uniform(0, 30)])
    fields: Spec = random.choice([{}, {"priority": 5}, BESIDE_OTHERS, BESIDE_OTHERS])
    if random.random() < 0.3:
        fields = {**fields, "optimize": {"backend": "Auto"}}
    maximum = max(1, minimum) + random.choice([0, 0, 1])
    spec = service_spec(name, minimum, maximum, **fields)
    if minimum == 0:
        spec["replicas"] |= {
            "stopAfterSeconds": random.choice([30, 30, 60]), "coldStartSeconds": 120,
        }  # fmt: skip
    model = Model(
        memory_bytes=random.choice([2, 3]) * GIB,
        load_seconds=random.choice([1.0, 4.0, 15.0]),
        answer_seconds=random.choice([0.05, 0.5, 3.0]),
        busy_seconds=random.choice([0.05, 0.3, 2.0]),
        crashes=random.choice([(), (), (), ((random.uniform(0, 60), random.choice([0, 1])),) * 2]),
    )
    quiet = _quiet(random) if minimum == 0 else ()
    period = random.choice([2.0, 5.0, 10.0])
    if minimum == 0 and random.random() < 0.5:
        spec = parking(spec, random.choice([10, 20, 30]))
    specs = _edits(random, at, spec)
    return ServicePlan(name, random.choice(NAMESPACES), specs, model, period, quiet)


def parking(spec: Spec, seconds: int) -> Spec:
    """The spec, whose replicas park after so long without requests."""
    kept = {key: value for key, value in spec.items() if key not in BESIDE_OTHERS}
    return {**kept, "replicas": {**spec["replicas"], "parkAfterSeconds": seconds}}


def _quiet(random: Random) -> tuple[tuple[float, float], ...]:
    """Often long enough for the last replica to stop, which it does a minute after a request at the
    soonest, and sometimes a second time.
    """
    start = random.uniform(10, 60)
    end = start + random.uniform(60, 150)
    return ((start, end), (end + random.uniform(5, 60), SERVICES_END_SECONDS))


def _edits(random: Random, at: float, spec: Spec) -> tuple[tuple[float, Spec | None], ...]:
    """What users want of it later: another template, other bounds, no replica, no service."""
    found: list[tuple[float, Spec | None]] = [(at, spec)]
    for number in range(random.choice([0, 1, 2, 3])):
        at += random.uniform(10, 80)
        if at > SERVICES_END_SECONDS - 10:
            break
        match random.choice(["template", "template", "bounds", "suspend", "delete"]):
            case "template":
                spec = edited(spec, number + 2)
            case "bounds":
                spec = {**spec, "replicas": _bounds(random, spec["replicas"])}
            case "suspend":
                found.append((at, {**spec, "suspend": True}))
                at += random.uniform(1, 40)
            case _:
                found.append((at, None))
                if random.random() < 0.5:
                    return tuple(found)
                at += random.choice([0.0, random.uniform(1, 30)])
        found.append((at, spec))
    return tuple(found)


def _bounds(random: Random, replicas: Spec) -> Spec:
    """At times a service needs a gate from then on, or none any more."""
    minimum = random.choice([0, 1, 1, 2])
    return {
        "stopAfterSeconds": 60,
        "coldStartSeconds": 120,
        **replicas,
        # Only a service that may have no replica parks them. A merge patch needs the null.
        **({"parkAfterSeconds": None} if minimum else {}),
        "minimum": minimum,
        "maximum": max(1, minimum) + random.choice([0, 1]),
    }
