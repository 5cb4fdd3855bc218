"""What may happen to a running cluster, and to its jobs, at any moment of a soak."""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from gpujob_local.control_plane.api_client import ApiError
from tests.harness.pod_facts import FINAL
from tests.harness.scene import JOBS, Scene, pod_path

JOBS_MAX = 24
OPERATORS = ("operator", "second")
AWAY_SECONDS = 2.0
FROZEN_SECONDS = 4.0
NODES = "/api/v1/nodes"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"
QUOTA = "few"
# Of AWS Node Termination Handler.
NOTICE = "aws-node-termination-handler/spot-itn"
FAULTS_OF_WORKERS = ("1=exit:7", "1=late-exit:1", "1=late-error", "*=ignore-term", "1=user-error")
# Each with its weight.
Events = tuple[tuple[int, Callable[[], None]], ...]


class Weather:
    """Draws one event after the other. All that it breaks is whole again after `mend`.

    Jobs come and go on while something of the cluster is away.
    """

    def __init__(self, scene: Scene, random: Random, jobs_max: int, events_a_second: float) -> None:
        self._scene = scene
        self._random = random
        self._jobs_max = jobs_max
        self._between_seconds = 1 / events_a_second
        self._made = 0
        self._names: list[str] = []
        self._timers: list[threading.Timer] = []
        self._happened: Counter[str] = Counter()
        self._of_jobs: Events = (
            (400, self.submit_job),
            (240, self.finish_job),
            (60, self.delete_job),
            (60, self.suspend_job),
            (80, self.resume_job),
            (30, self.delete_pod),
            (20, self.evict_pod),
            (30, self.kill_worker),
        )
        self._of_the_cluster: Events = (
            (4, self.kill_operator),
            (4, self.freeze_operator),
            (3, self.kill_agent),
            (2, self.kill_node),
            (2, self.drain_node),
            (2, self.announce_end_of_node),
            (3, self.set_quota),
            (1, self.lose_api_server),
        )

    def play(self, seconds: float) -> None:
        """Events of all kinds for so long."""
        self._happen_for(seconds, (*self._of_jobs, *self._of_the_cluster))

    def take_happened(self) -> Counter[str]:
        """How often each event happened since the last call."""
        happened, self._happened = self._happened, Counter()
        return happened

    def _happen_for(self, seconds: float, events: Events) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._happen(events)
            time.sleep(self._random.uniform(0.0, 2 * self._between_seconds))

    def _happen(self, events: Events) -> None:
        """One event, with the jobs and processes that there are now."""
        weights = [weight for weight, _ in events]
        event = self._random.choices([one for _, one in events], weights)[0]
        # A job or pod may be gone that was there a moment ago.
        with contextlib.suppress(ApiError):
            event()
            self._happened[event.__name__] += 1

    def mend(self) -> list[str]:
        """Ends every fault, and says which jobs are left to come to their end."""
        for timer in self._timers:
            timer.join()
        self._timers.clear()
        cluster = self._scene.cluster
        with contextlib.suppress(ApiError):
            self._scene.client.delete(f"{QUOTAS}/{QUOTA}")
        for node in cluster.node_names():
            self._patch_node(node, {"unschedulable": None})
            self._taint(node, [])
            if node not in cluster.children:
                cluster.start_node(node)
            elif f"agent-{node}" not in cluster.children:
                cluster.start_agent(node)
        for name in OPERATORS:
            if name not in cluster.children:
                cluster.spawn_operator(name)
        there = self._unfinished()
        for name in there:
            # Its time after the end may have passed meanwhile.
            with contextlib.suppress(ApiError):
                self._suspend(name, suspend=False)
            self._scene.finish(name)
        self._names.clear()
        return there

    # -- jobs

    def submit_job(self) -> None:
        if len(self._unfinished()) >= self._jobs_max:
            self.finish_job()
            return
        random = self._random
        self._made += 1
        name = f"job{self._made}"
        faults = [random.choice(FAULTS_OF_WORKERS)] if random.random() < 0.4 else []
        spec: dict[str, Any] = {}
        if random.random() < 0.5:
            spec["checkpoint"] = {"volumeClaimName": "checkpoints"}
        if random.random() < 0.25:
            spec["workers"] = 2
        if random.random() < 0.25:
            spec["sharing"] = {"mode": "Exclusive"}
        if random.random() < 0.2:
            spec["priority"] = random.choice([-5, 5])
        # Or there are ever more of them to list.
        spec["ttlSecondsAfterFinished"] = random.randint(0, 20)
        self._scene.submit(name, *faults, **spec)
        self._names.append(name)

    def finish_job(self) -> None:
        if name := self._any():
            self._scene.finish(name)

    def delete_job(self) -> None:
        if name := self._any():
            self._scene.delete(name)

    def suspend_job(self) -> None:
        if name := self._any():
            self._suspend(name, suspend=True)

    def resume_job(self) -> None:
        if name := self._any():
            self._suspend(name, suspend=False)

    def delete_pod(self) -> None:
        if pods := self._pods():
            self._scene.client.delete(pod_path(self._random.choice(pods)))

    def evict_pod(self) -> None:
        if pods := self._pods():
            self._evict(self._random.choice(pods))

    def kill_worker(self) -> None:
        for pod in self._pods():
            for pid in self._scene.worker_pids(pod)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                return

    # -- the cluster

    def kill_operator(self) -> None:
        name = self._random.choice(OPERATORS)
        if name in self._scene.cluster.children:
            self._scene.cluster.kill_operator(name)
            self._scene.cluster.spawn_operator(name)

    def freeze_operator(self) -> None:
        """For longer than its Lease lasts."""
        child = self._scene.cluster.children.get(self._random.choice(OPERATORS))
        if child is None:
            return
        child.process.send_signal(signal.SIGSTOP)
        self._later(FROZEN_SECONDS, lambda: child.process.send_signal(signal.SIGCONT))

    def kill_agent(self) -> None:
        node = self._random.choice(self._scene.cluster.node_names())
        if f"agent-{node}" in self._scene.cluster.children:
            self._scene.cluster.kill_agent(node)
            self._jobs_go_on(self._random.uniform(0.0, 6.0))
            self._scene.cluster.start_agent(node)

    def kill_node(self) -> None:
        node = self._random.choice(self._scene.cluster.node_names())
        if node in self._scene.cluster.children:
            self._scene.cluster.kill_node(node)
            self._jobs_go_on(self._random.uniform(0.0, 10.0))
            self._scene.cluster.start_node(node)

    def drain_node(self) -> None:
        """As `kubectl drain` does; the node is taken into use again soon."""
        node = self._random.choice(self._scene.cluster.node_names())
        self._patch_node(node, {"unschedulable": True})
        for pod in self._pods():
            if pod["spec"].get("nodeName") == node:
                self._evict(pod)
        self._jobs_go_on(self._random.uniform(0.0, 8.0))
        self._patch_node(node, {"unschedulable": None})

    def announce_end_of_node(self) -> None:
        """It does not come, as after a maintenance event that was called off."""
        node = self._random.choice(self._scene.cluster.node_names())
        self._taint(node, [{"key": NOTICE, "value": "true", "effect": "NoSchedule"}])
        self._jobs_go_on(self._random.uniform(0.0, 8.0))
        self._taint(node, [])

    def set_quota(self) -> None:
        """Fewer pods than there are jobs, for a while."""
        quota = {
            "metadata": {"name": QUOTA},
            "spec": {"hard": {"pods": self._random.randint(1, 6)}},
        }
        self._scene.client.create(QUOTAS, quota)
        self._jobs_go_on(self._random.uniform(0.0, 8.0))
        self._scene.client.delete(f"{QUOTAS}/{QUOTA}")

    def lose_api_server(self) -> None:
        with self._scene.without_api_server():
            time.sleep(AWAY_SECONDS)

    # -- inside

    def _jobs_go_on(self, seconds: float) -> None:
        self._happen_for(seconds, self._of_jobs)

    def _any(self) -> str:
        names = self._unfinished()
        return self._random.choice(names) if names else ""

    def _unfinished(self) -> list[str]:
        jobs = self._scene.client.get(JOBS)["items"]
        there = {
            job["metadata"]["name"]
            for job in jobs
            if job.get("status", {}).get("phase") not in FINAL
        }
        self._names = [name for name in self._names if name in there]
        return self._names.copy()

    def _suspend(self, name: str, *, suspend: bool) -> None:
        self._scene.client.merge(f"{JOBS}/{name}", {"spec": {"suspend": suspend}})

    def _evict(self, pod: dict[str, Any]) -> None:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod["metadata"]["name"]},
        }
        # Another pod may be gone meanwhile.
        with contextlib.suppress(ApiError):
            self._scene.client.create(f"{pod_path(pod)}/eviction", eviction)

    def _taint(self, node: str, taints: list[dict[str, str]]) -> None:
        """In place of earlier ones of ours; those of others stay."""
        spec = self._scene.client.get(f"{NODES}/{node}")["spec"]
        others = [taint for taint in spec.get("taints", ()) if taint["key"] != NOTICE]
        self._patch_node(node, {"taints": [*others, *taints]})

    def _patch_node(self, node: str, spec: dict[str, Any]) -> None:
        self._scene.client.merge(f"{NODES}/{node}", {"spec": spec})

    def _pods(self) -> list[dict[str, Any]]:
        pods = self._scene.client.get("/api/v1/namespaces/default/pods")["items"]
        self._random.shuffle(pods)
        return pods

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            # The process may have been killed meanwhile.
            with contextlib.suppress(ProcessLookupError, OSError):
                action()

        timer = threading.Timer(seconds, act)
        timer.start()
        self._timers.append(timer)
