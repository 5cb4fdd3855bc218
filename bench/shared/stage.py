"""The stage: a real control plane, operator and agent, one node with the device, and its jobs."""

import json
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.shared.ground import Device
from bench.shared.meter import Meter, Span
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_local.cluster.cluster import ClusterOptions, LocalCluster, NodeOptions
from gpujob_local.cluster.options import WORKER_IMAGE
from gpujob_local.control_plane.api_client import Json
from gpujob_local.demo.following import Follower, StoryError
from gpujob_local.demo.telling import Teller
from gpujob_local.gpus.cpu_cards import open_cards
from gpujob_operator.agent.cpu.source import nvml_of_cpu_cards

NODE = "node-1"
CLAIM = "checkpoints"
SCRIPT = Path(__file__).with_name("job.py")
POLL_SECONDS = 0.1
# So that the processes of a rehearsal have room on a CPU card.
CARD_BYTES = 4 * 1024**3
_JOBS = "/apis/gpujob.dev/v1alpha1/namespaces/default/gpujobs"
# Figures move faster than on a real cluster, where they would cost writes.
CONFIGURATION = {
    "retryBackoffSeconds": 1.0,
    "progressWriteSeconds": 1.0,
    "pendingWriteSeconds": 1.0,
    "reportIntervalSeconds": 1.0,
    "slowedSeconds": 5.0,
}


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the agent reads, how many readings are a measurement, and the limit of a wait."""

    agent_seconds: float
    samples_min: int
    limit_seconds: float


@dataclass(frozen=True, slots=True)
class Job:
    """One job to submit. `kind` names its workload of `bench/workloads`; `family` its profile."""

    name: str
    kind: str
    arguments: tuple[str, ...] = ()
    memory_bytes: int | None = None
    mode: str = "Auto"
    max_slowdown_percent: int = 10
    family: str = ""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    # `Off` leaves the script alone, and does not resume it.
    optimize: str = "Off"

    def manifest(self, size: str, folder: Path) -> Json:
        command = ["python", "-m", "gpujob_worker", "--", "python", str(SCRIPT), self.kind]
        command += ["--size", size, "--output-dir", str(folder), *self.arguments]
        container = {
            "name": "worker",
            "image": WORKER_IMAGE,
            "command": command,
            "env": [{"name": name, "value": value} for name, value in self.environment.items()],
        }
        spec: Json = {
            "workload": self.family or self.kind,
            "sharing": {"mode": self.mode, "maxSlowdownPercent": self.max_slowdown_percent},
            "optimize": {"mode": self.optimize},
            "checkpoint": {"volumeClaimName": CLAIM},
            "retry": {"limit": 0},
            "template": {"spec": {"containers": [container]}},
        }
        if self.memory_bytes is not None:
            spec["gpu"] = {"memory": str(self.memory_bytes)}
        head = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUJob"}
        return head | {"metadata": {"name": self.name}, "spec": spec}


@dataclass(frozen=True, slots=True)
class Step:
    """The end of a step on the machine's monotonic clock."""

    at: float
    number: int
    loss: float


@dataclass(slots=True)
class Stage:
    """Jobs go on it and off it. Waits raise `StoryError` with what was there instead."""

    cluster: LocalCluster
    device: Device
    meter: Meter
    follower: Follower
    teller: Teller
    folder: Path
    size: str
    limit_seconds: float

    def submit(self, *jobs: Job) -> None:
        client = self.cluster.client()
        for job in jobs:
            client.create(_JOBS, job.manifest(self.size, self.folder))

    def suspend(self, name: str, *, suspended: bool = True) -> None:
        self.cluster.client().merge(f"{_JOBS}/{name}", {"spec": {"suspend": suspended}})

    def end(self, *names: str) -> None:
        """Lets jobs end by themselves, and waits until the GPU is free of them."""
        for name in names:
            (self.folder / f"{name}.end").touch()
        for name in names:
            self.until(name, "its end", lambda job: job.status.finished)

    def clear(self) -> None:
        """Ends whatever an act left behind, so that the next one begins on an idle device."""
        client = self.cluster.client()
        left = [item["metadata"]["name"] for item in client.get(_JOBS)["items"]]
        for name in left:
            client.delete(f"{_JOBS}/{name}")
        end = time.monotonic() + self.limit_seconds
        while client.get("/api/v1/namespaces/default/pods")["items"]:
            if time.monotonic() > end:
                raise StoryError(f"pods are left of {', '.join(left)}")
            time.sleep(POLL_SECONDS)

    def until(
        self, name: str, what: str, met: Callable[[GPUJob], bool], limit: float | None = None
    ) -> GPUJob:
        """The job as soon as its present state meets the condition. `limit` is in seconds."""
        limit = self.limit_seconds if limit is None else limit
        end = time.monotonic() + limit
        while True:
            job = self.follower.job(name)
            if job is not None and met(job):
                return job
            over = job is not None and job.status.finished
            if over or time.monotonic() > end:
                raise StoryError(
                    f"{name}: {what} was not seen in {limit:.0f} s: {self.follower.last(name)}"
                )
            time.sleep(POLL_SECONDS)

    def steps(self, name: str) -> list[Step]:
        return read_steps(self.folder / f"{name}.jsonl")

    def result(self, name: str) -> dict[str, Any]:
        return json.loads((self.folder / f"{name}.result.json").read_text())

    def trained(self, name: str, steps: int) -> None:
        """Waits until the job has made so many steps."""
        end = time.monotonic() + self.limit_seconds
        while len(self.steps(name)) < steps:
            job = self.follower.job(name)
            if time.monotonic() > end or (job is not None and job.status.phase is JobPhase.FAILED):
                raise StoryError(
                    f"{name}: {len(self.steps(name))} of {steps} steps in "
                    f"{self.limit_seconds:.0f} s: {self.follower.last(name)}"
                )
            time.sleep(POLL_SECONDS)

    def window(self, names: Sequence[str], seconds: float) -> "Window":
        """What these jobs do for so long."""
        start = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        paces = {name: pace(self.steps(name), start, end) for name in names}
        return Window(self.meter.span(start, end), paces)

    def memory_peak_bytes(self, job: GPUJob, span: Span) -> int:
        """What NVML counted of the job's pods."""
        placement = job.status.placement
        pods = {one.pod_uid for one in placement.workers} if placement is not None else set()
        return sum(span.pod_peak_bytes.get(pod, 0) for pod in pods)


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time: the device's readings, and each job's steps a second (0: it made none)."""

    span: Span
    paces: Mapping[str, float]


def read_steps(path: Path) -> list[Step]:
    """The steps that a job has recorded so far. The last line may not be whole yet."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    return [Step(*json.loads(line)) for line in lines if line.endswith("]")]


def pace(steps: Sequence[Step], start: float, end: float) -> float:
    """Steps a second, between the first and the last step of the time."""
    inside = [step.at for step in steps if start <= step.at <= end]
    if len(inside) < 2 or inside[-1] <= inside[0]:
        return 0.0
    return (len(inside) - 1) / (inside[-1] - inside[0])


@contextmanager
def set_stage(device: Device, folder: Path, size: str, pace: Pace) -> Generator[Stage]:
    """Starts everything. `folder` gets the jobs' files. On leaving, nothing of it runs any more."""
    teller = Teller()
    node = NodeOptions(NODE, cards=1)
    if device.is_gpu:
        node = NodeOptions(NODE, cards=0, gpus=(device.uuid,))
    options = ClusterOptions(
        nodes=(node,),
        card_bytes=CARD_BYTES,
        agent_interval_seconds=pace.agent_seconds,
        operator_configuration=CONFIGURATION | {"measurementSamplesMin": pace.samples_min},
    )
    with ExitStack() as stack:
        cluster = LocalCluster.start(options, say=lambda text: teller.say("cluster", text))
        stack.enter_context(cluster)
        (uuid,) = cluster.cards(NODE)
        nvml = _nvml(cluster, device)
        meter = stack.enter_context(Meter(nvml, uuid))
        follower = stack.enter_context(Follower(cluster.client, teller))
        stage = Stage(
            cluster, replace(device, uuid=uuid) if device.is_gpu else device, meter, follower,
            teller, folder, size, pace.limit_seconds,
        )  # fmt: skip
        _claim(stage)
        yield stage


def _nvml(cluster: LocalCluster, device: Device) -> Any:
    if device.is_gpu:
        import pynvml

        return pynvml
    return nvml_of_cpu_cards(lambda: open_cards(cluster.directory / "nodes" / NODE / "cards.json"))


def _claim(stage: Stage) -> None:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    body: Json = {"metadata": {"name": CLAIM}, "spec": spec}
    stage.cluster.client().create("/api/v1/namespaces/default/persistentvolumeclaims", body)
    sys.stdout.flush()
