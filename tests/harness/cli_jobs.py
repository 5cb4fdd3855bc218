"""Jobs as the API server stores them, a cluster that holds them in memory, and commands on it."""

import contextlib
import io
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuservice import GPUService
from gpujob_api.manifest import GPUNODE, GPUPROFILE, GPUQUEUE, from_manifest, to_manifest
from gpujob_operator.read.snapshot import Objects
from kubectl_gpujob.errors import NotCheckedError, NotFoundError, UserError
from kubectl_gpujob.grammar import World, run
from kubectl_gpujob.kubectl import KubectlError
from kubectl_gpujob.screen import PIPE_COLUMNS, Screen

# The lists of one whole reading, in order: jobs first, pods after what they need.
EVERYTHING = [
    *(f"/apis/gpujob.dev/v1alpha1/{kind}" for kind in ("gpujobs", "gpunodes", "gpuqueues")),
    "/apis/gpujob.dev/v1alpha1/gpuprofiles",
    *("/api/v1/nodes", "/api/v1/pods", "/api/v1/persistentvolumes", "/api/v1/configmaps"),
]
NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


def manifest(
    name: str = "resnet50",
    *,
    namespace: str = "vision",
    created: str = "2026-11-20T11:50:00Z",
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A GPUJob object as JSON."""
    template = {"spec": {"containers": [{"name": "worker", "image": "worker"}]}}
    return {
        "apiVersion": "gpujob.dev/v1alpha1",
        "kind": "GPUJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "generation": 1,
            "creationTimestamp": created,
        },
        "spec": {"template": template, "queue": "research", **(spec or {})},
        "status": {"phase": "Pending", "observedGeneration": 1, **(status or {})},
    }


def condition(kind: str, value: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-20T11:58:00Z",
        "observedGeneration": 1,
    }


def succeeded_status() -> dict[str, Any]:
    """A tuned job that was interrupted once, went on, and finished."""
    return {
        "phase": "Succeeded",
        "attempt": 2,
        "startedAt": "2026-11-20T11:50:30Z",
        "finishedAt": "2026-11-20T11:55:00Z",
        "tuned": {"precision": "bfloat16", "batchPerStep": 64, "compile": True},
        "tuningSeconds": 11.5,
        "resumedFromStep": 210,
        "counters": {"interruptions": 1},
        "checkpoint": {"step": 400, "bytes": 1288490189, "writeSeconds": 1.3},
        "reservation": {
            "memoryBytes": 6335076762,
            "utilizationPercent": 63.0,
            "source": "Measured",
        },
        "measurement": {
            "memoryBytes": 5798205850,
            "utilizationPercent": 63.0,
            "samples": 120,
            "step": 400,
            "stepsTotal": 400,
            "loss": 1.25,
            "dataWaitPercent": 4.0,
            "baseline": {
                "stepSeconds": 0.412,
                "peakMemoryBytes": 10522669875,
                "samplesPerSecond": 621.0,
            },
            "speedup": {"ratio": 1.84, "low": 1.79, "high": 1.9, "pairs": 10},
            "current": {
                "stepSeconds": 0.187,
                "peakMemoryBytes": 5476083302,
                "samplesPerSecond": 1369.0,
            },
        },
        "placement": {"workers": [{"rank": 0, "node": "node-a", "gpus": ["GPU-1a"]}], "spot": True},
    }


def job(**arguments: Any) -> GPUJob:
    return from_manifest(GPUJob, manifest(**arguments))


@dataclass
class MemoryLog:
    """A pod's log that has ended."""

    data: io.BytesIO

    def failure(self) -> KubectlError | None:
        return None


@dataclass
class MemoryCluster:
    """A cluster that answers from lists; `may_list_all` False refuses as RBAC would."""

    held: Sequence[GPUJob] = ()
    services: Sequence[GPUService] = ()
    namespace: str = "vision"
    may_list_all: bool = True
    asked: list[str] = field(default_factory=list[str])
    # What is listed besides, and the server's time.
    objects_held: Objects = field(default_factory=Objects)
    now: datetime = NOW
    configurations: Mapping[str, str] | None = None
    # What the API server says to a dry run, or why it is not asked.
    refuses: str = ""
    not_checked: str = ""
    # Names of claims and Secrets of the namespace; None: they may not be read.
    claim_names: Sequence[str] | None = None
    # Those that are being deleted.
    going: Sequence[str] = ()
    secret_names: Sequence[str] | None = None
    logs: Mapping[str, str] = field(default_factory=dict[str, str])
    pod_list: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    event_list: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    # What the commands created, changed and deleted.
    created: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    patched: list[tuple[str, str, Mapping[str, Any]]] = field(
        default_factory=list[tuple[str, str, Mapping[str, Any]]]
    )
    deleted: list[str] = field(default_factory=list[str])
    # Verbs that fail, by the path or the kind they are of.
    fails_at: str = ""
    # Called before a job is read, with how often that happened before.
    before_read: Callable[["MemoryCluster", int], None] = lambda _, __: None
    _reads: int = 0

    def refusal(self, manifest: Mapping[str, Any], namespace: str) -> str:
        self.asked.append(f"dry run of {manifest['metadata']['name']} in {namespace}")
        if self.not_checked:
            raise NotCheckedError(self.not_checked)
        return self.refuses

    def manifest(self, name: str) -> Mapping[str, Any]:
        return to_manifest(self.job(name))

    def job(self, name: str) -> GPUJob:
        self.before_read(self, self._reads)
        self._reads += 1
        for held in self.held:
            if (held.metadata.namespace, held.metadata.name) == (self.namespace, name):
                return held
        raise NotFoundError(f"not found: gpujob {name} in namespace {self.namespace}")

    def service(self, name: str) -> GPUService | None:
        found = (one for one in self.services if one.metadata.name == name)
        return next((one for one in found if one.metadata.namespace == self.namespace), None)

    def jobs(self, *, all_namespaces: bool = False, selector: str = "") -> Sequence[GPUJob]:
        self.asked.append("all" if all_namespaces else self.namespace)
        if all_namespaces and not self.may_list_all:
            raise UserError("you may not read gpujobs: 403 Forbidden")
        key, _, value = selector.partition("=")
        return [
            job
            for job in self.held
            if (all_namespaces or job.metadata.namespace == self.namespace)
            and (not key or job.metadata.labels.get(key) == value)
        ]

    def objects(self, what: str, path: str, **query: str) -> list[Mapping[str, Any]]:
        self.asked.append(path)
        del what
        held = self.objects_held
        kinds: Mapping[str, Any] = {
            "gpujobs": held.jobs,
            GPUNODE.plural: held.gpu_nodes,
            GPUQUEUE.plural: held.queues,
            GPUPROFILE.plural: held.profiles,
            "nodes": held.nodes,
            "pods": held.pods,
            "persistentvolumes": held.volumes,
        }
        kind = path.rpartition("/")[2]
        if path == f"/api/v1/namespaces/{self.namespace}/configmaps":
            return [made for made in self.created if made["kind"] == "ConfigMap"]
        if kind == "configmaps":
            return self._configuration_maps()
        if path == f"/api/v1/namespaces/{self.namespace}/{kind}":
            return self._named(kind, query)
        return list(kinds.get(kind, ()))

    def _named(self, kind: str, query: Mapping[str, str]) -> list[Mapping[str, Any]]:
        names = self.claim_names if kind == "persistentvolumeclaims" else self.secret_names
        if names is None:
            raise UserError(f"you may not use {kind} (403 Forbidden)")
        wanted = query["fieldSelector"].removeprefix("metadata.name=")
        going = {"deletionTimestamp": "2026-11-20T11:00:00Z"} if wanted in self.going else {}
        return [{"metadata": {"name": name, **going}} for name in names if name == wanted]

    def _configuration_maps(self) -> list[Mapping[str, Any]]:
        if self.configurations is None:
            raise UserError("you may not use configmaps of all namespaces (403 Forbidden)")
        found: list[Mapping[str, Any]] = []
        for key, text in self.configurations.items():
            namespace, _, name = key.partition("/")
            metadata = {"namespace": namespace, "name": name}
            found.append({"metadata": metadata, "data": {"configuration.yaml": text}})
        return found

    def pods(self, job: GPUJob) -> list[Mapping[str, Any]]:
        del job
        return list(self.pod_list)

    def events(self, job: GPUJob) -> list[Mapping[str, Any]]:
        del job
        return list(self.event_list)

    @contextmanager
    def log(self, namespace: str, pod: str, **query: str) -> Generator[Any]:
        asked = " ".join(f"{key}={value}" for key, value in sorted(query.items()))
        self.asked.append(f"log of {namespace}/{pod} {asked}")
        yield MemoryLog(io.BytesIO(self.logs.get(pod, "").encode()))

    def server_time(self) -> datetime | None:
        return self.now

    def create(self, what: str, path: str, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.fails_at and self.fails_at in path:
            raise UserError(f"{what} was not created: forbidden")
        made = {**manifest, "metadata": {**manifest["metadata"], "uid": f"uid-{len(self.created)}"}}
        self.created.append(made)
        if manifest["kind"] == "GPUJob":
            self.held = [*self.held, from_manifest(GPUJob, made)]
        return made

    def patch(self, kind: str, name: str, patch: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.fails_at and self.fails_at == kind:
            raise UserError(f"{kind} {name}: forbidden")
        self.patched.append((kind, name, patch))
        return {}

    def delete(self, what: str, path: str) -> None:
        del what
        self.deleted.append(path)


@dataclass(frozen=True)
class Ran:
    """What a command wrote, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str
    exception: UserError | None = None

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


@dataclass
class Clock:
    """Time that passes only while a command sleeps."""

    at: datetime = NOW

    def now(self) -> datetime:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


def run_command(
    cluster: MemoryCluster,
    *arguments: str,
    clock: Clock | None = None,
    width: int = PIPE_COLUMNS,
    is_terminal: bool = False,
    answer: str = "",
) -> Ran:
    """Runs `kubectl gpujob` on a cluster in memory, as `main` does."""
    out, err, clock = io.StringIO(), io.StringIO(), clock or Clock()
    screen = Screen(out, err, width, is_terminal)
    world = World(screen, lambda _: cluster, clock.now, clock.sleep, lambda _: answer)
    failed: UserError | None = None
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        try:
            code = run(arguments, world)
        except UserError as error:
            failed, code = error, error.exit_code
        except SystemExit as end:
            code = int(end.code or 0)
    return Ran(code, out.getvalue(), err.getvalue(), failed)
