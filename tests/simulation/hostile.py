"""Somebody who may create pods, and makes them look like workers of other people's jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any

from gpujob_api.meta import (
    ANNOTATION_GPUS,
    API_VERSION,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_RANK,
)
from gpujob_operator.client.api_errors import AlreadyExists, NotFound
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer, Manifest
from tests.simulation.clock import Clock
from tests.simulation.cluster import Cluster

AUTHOR = "hostile"
NAMESPACE = "hostile"
FOREIGN_FINALIZER = "example.com/keep"
MESSAGE_CHARACTERS_MAX = 4096
# A kubelet ends the containers of a deleted pod, whatever finalizer keeps the object.
KILLED_SECONDS_MAX = 600.0
# What a container may write to its termination log.
ODD_MESSAGES = (
    '{"attempt":1,"phase":"training","loss":1' + "0" * 400 + "}",
    '{"attempt":1' + "0" * 4000 + ',"phase":"finished"}',
    '{"attempt":1e999,"phase":"finished","step":-1}',
    '{"attempt":NaN,"phase":"finished","current":{"stepSeconds":Infinity}}',
    "{" + '"a":{' * 700,
    "[" * 4000,
    '{"attempt":true,"phase":["training"],"step":"10"}',
    '{"phase":"finished","failure":{"class":"\\ud800","message":"\\u0000\\u001b[2J"}}',
    "\u0000\ufffd\u202e finished",
)


class Disguise(Enum):
    """How a pod pretends to be a worker."""

    LABELS = "labels"
    NAME_ELSEWHERE = "name-elsewhere"
    MOVING_LABEL = "moving-label"
    OWNER = "owner"
    HELD = "held"
    OWNER_HELD = "owner-held"


@dataclass(frozen=True, slots=True)
class Impostor:
    """A pod that appears at a time. `same_namespace`: beside the job, not in the author's own."""

    at: float
    disguise: Disguise
    same_namespace: bool
    ends_after: float
    exit_code: int
    message: str


class HostileAuthor:
    """Creates the impostors, and plays the kubelet for them: their containers do what they like."""

    def __init__(self, clock: Clock, api: ApiServer, cluster: Cluster) -> None:
        self._clock = clock
        self._api = api
        self._cluster = cluster
        self._made = 0

    def appear(self, impostor: Impostor) -> None:
        jobs = self._api.list(Kind.JOB)
        if not jobs:
            return
        victim = self._clock.random.choice(jobs)
        self._made += 1
        manifest = self._manifest(impostor, victim, self._made)
        try:
            pod = self._api.create(Kind.POD, manifest, AUTHOR)
        except AlreadyExists:
            return
        self._say(pod, _running())
        if impostor.disguise is Disguise.MOVING_LABEL:
            self._move_label(pod, jobs)
        seconds = impostor.ends_after
        if FOREIGN_FINALIZER in pod["metadata"].get("finalizers", ()):
            self._api.delete(Kind.POD, *_key(pod), AUTHOR, grace=5)
            seconds = min(seconds, KILLED_SECONDS_MAX)
        ended = _ended(impostor.exit_code, impostor.message)
        self._clock.after(seconds, lambda: self._say(pod, ended))

    def _manifest(self, impostor: Impostor, victim: Manifest, number: int) -> Manifest:
        job = victim["metadata"]
        attempt = max((victim.get("status") or {}).get("attempt", 1), 1)
        owned = impostor.disguise in (Disguise.OWNER, Disguise.OWNER_HELD)
        elsewhere = impostor.disguise is Disguise.NAME_ELSEWHERE or not impostor.same_namespace
        name = f"x{number}-{attempt}-0"
        if impostor.disguise is Disguise.NAME_ELSEWHERE:
            name = f"{job['name']}-{attempt}-0"
        elif owned:
            name = f"{job['name']}-{attempt}-{number + 6}"
        metadata: Manifest = {
            "name": name,
            "namespace": NAMESPACE if elsewhere else job["namespace"],
            "labels": {
                LABEL_JOB: job["name"],
                LABEL_JOB_UID: job["uid"],
                LABEL_ATTEMPT: str(attempt),
                LABEL_RANK: "0",
            },
            "annotations": {ANNOTATION_GPUS: ",".join(self._all_gpus())},
        }
        if owned or impostor.disguise is Disguise.NAME_ELSEWHERE:
            owner = {"apiVersion": API_VERSION, "kind": "GPUJob", "controller": True}
            metadata["ownerReferences"] = [{**owner, "name": job["name"], "uid": job["uid"]}]
        if impostor.disguise in (Disguise.HELD, Disguise.OWNER_HELD):
            metadata["finalizers"] = [FOREIGN_FINALIZER]
        node = self._clock.random.choice(sorted(self._cluster.machines)).split("~")[0]
        worker = {"name": "worker", "image": "image:1"}
        spec = {"nodeName": node, "containers": [worker], "schedulerName": "none"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _all_gpus(self) -> list[str]:
        return [uuid for one in self._cluster.machines.values() for uuid in one.gpus][:16]

    def _move_label(self, pod: Manifest, jobs: list[Manifest]) -> None:
        """From one job's UID to another's and back, again and again."""
        uids = [job["metadata"]["uid"] for job in jobs[:2]]
        for turn in range(8):
            labels = {LABEL_JOB_UID: uids[turn % len(uids)]}
            patch = {"metadata": {"labels": labels}}
            self._clock.after(3.0 * turn, lambda patch=patch: self._patch(pod, patch, spec=True))

    def _say(self, pod: Manifest, status: Manifest) -> None:
        self._patch(pod, {"status": status}, spec=False)

    def _patch(self, pod: Manifest, patch: Manifest, *, spec: bool) -> None:
        try:
            current = self._api.get(Kind.POD, *_key(pod))
        except NotFound:
            return
        if current["metadata"]["uid"] == pod["metadata"]["uid"]:
            self._api.patch(Kind.POD, *_key(pod), patch, AUTHOR, spec=spec)


def _key(pod: Manifest) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _running() -> Manifest:
    state: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    return {"phase": "Running", "containerStatuses": [{"name": "worker", "state": state}]}


def _ended(exit_code: int, message: str) -> Manifest:
    ended = {"exitCode": exit_code, "message": message, "reason": "Error" if exit_code else ""}
    statuses = [{"name": "worker", "state": {"terminated": ended}}]
    phase = "Failed" if exit_code else "Succeeded"
    return {"phase": phase, "containerStatuses": statuses}


def make_impostors(random: Random, last: float) -> list[Impostor]:
    """Some seeds have none."""
    return [
        Impostor(
            random.choice([random.uniform(1, 40), random.uniform(1, last)]),
            random.choice(list(Disguise)),
            random.random() < 0.5,
            random.choice([1.0, 20.0, 1e6]),
            random.choice([0, 0, 1, 143]),
            random.choice(ODD_MESSAGES),
        )
        for _ in range(random.choice([0, 0, 1, 3, 6]))
    ]
