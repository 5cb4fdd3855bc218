"""Jobs as the API server stores them, and a cluster that holds them in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest
from gpujob_operator.read.snapshot import Objects
from kubectl_gpujob.errors import NotCheckedError, UserError
from kubectl_gpujob.listing import Listing

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
class MemoryCluster:
    """A cluster that answers from a list; `may_list_all` False refuses as RBAC would."""

    held: Sequence[GPUJob] = ()
    namespace: str = "vision"
    may_list_all: bool = True
    asked: list[str] = field(default_factory=list[str])
    # What `listing` finds besides, and the server's time.
    objects: Objects = field(default_factory=Objects)
    now: datetime = NOW
    configurations: Mapping[str, str] | None = None
    # What the API server says to a dry run, or why it is not asked.
    refuses: str = ""
    not_checked: str = ""

    def refusal(self, manifest: Mapping[str, Any], namespace: str) -> str:
        self.asked.append(f"dry run of {manifest['metadata']['name']} in {namespace}")
        if self.not_checked:
            raise NotCheckedError(self.not_checked)
        return self.refuses

    def listing(self) -> Listing:
        self.asked.append("everything")
        return Listing(self.objects, self.now, self.configurations)

    def job(self, name: str) -> GPUJob:
        for held in self.held:
            if (held.metadata.namespace, held.metadata.name) == (self.namespace, name):
                return held
        raise UserError(f"not found: gpujob {name} in namespace {self.namespace}")

    def jobs(self, *, all_namespaces: bool) -> Sequence[GPUJob]:
        self.asked.append("all" if all_namespaces else self.namespace)
        if all_namespaces:
            if not self.may_list_all:
                raise UserError("you may not read gpujobs: 403 Forbidden")
            return self.held
        return [held for held in self.held if held.metadata.namespace == self.namespace]
