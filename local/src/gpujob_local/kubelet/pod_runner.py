"""One pod on a process node: volumes, containers, status, deletion, as a small kubelet."""

import asyncio
import shutil
import sys
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import aiohttp

from gpujob_local.control_plane.api_client import STRATEGIC_PATCH, ApiError
from gpujob_local.kubelet.container_runner import (
    RETRY_SECONDS_MAX,
    RETRY_SECONDS_MIN,
    ContainerRunner,
    NodeSettings,
    Stop,
)
from gpujob_local.kubelet.node_api import NodeApi, patiently
from gpujob_local.kubelet.pod_environment import (
    ContainerConfigError,
    Json,
    PodFacts,
    unsupported_feature,
)
from gpujob_local.kubelet.pod_status import EXIT_KILLED, Verdict, pod_status, terminated, waiting
from gpujob_local.kubelet.pod_volumes import PodVolumes

HOST_IP = "127.0.0.1"
GRACE_SECONDS_DEFAULT = 30.0
# Seconds that a pod has left after its object was deleted by force.
FORCED_GRACE_SECONDS = 1.0
# Seconds between two requests to remove the object of a pod that has ended.
DELETE_AGAIN_SECONDS = 2.0
TERMINAL = ("Succeeded", "Failed")


class PodRunner:
    """Runs a pod. It is started with `start`, and ends when the pod's object is gone from
    the API.
    """

    def __init__(self, pod: Json, api: NodeApi, settings: NodeSettings, pod_ip: str) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self._api = api
        self._folder = settings.folder / "pods" / self.uid
        self._facts = PodFacts(pod, pod_ip, HOST_IP)
        self._volumes = PodVolumes(
            api, self._facts, self._folder / "volumes", settings.shared_volumes
        )
        self._stop = Stop()
        self._gone = asyncio.Event()
        self._deleting = asyncio.Event()
        self._ended = asyncio.Event()
        self._verdict: Verdict | None = None
        self._publishing = asyncio.Lock()
        self._published: Json = {}
        self._background: set[asyncio.Task[None]] = set()
        spec = pod["spec"]
        self._init = [self._runner(item, settings) for item in spec.get("initContainers", [])]
        self._main = [self._runner(item, settings) for item in spec["containers"]]
        self.task: asyncio.Task[None] | None = None

    def _runner(self, container: Json, settings: NodeSettings) -> ContainerRunner:
        return ContainerRunner(
            container, self._facts, self._volumes, settings, self._stop, self._changed
        )

    @property
    def name(self) -> tuple[str, str]:
        return self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]

    @property
    def address(self) -> str:
        return self._facts.pod_ip

    def container(self, name: str) -> ContainerRunner | None:
        for runner in (*self._main, *self._init):
            if runner.record.name == name:
                return runner
        return None

    def start(self) -> None:
        self.task = asyncio.create_task(self._live())
        self.update(self.pod)

    def update(self, pod: Json) -> None:
        """Called when the object changed. While a pod runs, only its deletion matters."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self._deleting.set()
            self._stop.request(float(pod["metadata"].get("deletionGracePeriodSeconds", 0)))

    def object_gone(self) -> None:
        """Called when the object was deleted by force, or while this node was not running."""
        self._gone.set()
        self._deleting.set()
        self._stop.request(FORCED_GRACE_SECONDS)

    async def shut_down(self, grace_seconds: float, limit_seconds: float) -> None:
        """Ends the pod within its grace period and publishes how it ended, because the node goes
        away.
        """
        if not self._ended.is_set():
            self._verdict = Verdict(
                "Terminated",
                "Pod was terminated in response to imminent node shutdown.",
                "TerminationByKubelet",
            )
        self._stop.request(grace_seconds)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), grace_seconds + limit_seconds)

    async def _live(self) -> None:
        terminator = asyncio.create_task(self._terminate_on_request())
        tokens: asyncio.Task[None] | None = None
        try:
            if self.pod.get("status", {}).get("phase") not in TERMINAL:
                if await self._admit():
                    tokens = asyncio.create_task(self._volumes.keep_tokens_fresh())
                    await self._run_containers()
                await self._publish()
            self._ended.set()
            await self._deleting.wait()
            await self._delete_object()
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        finally:
            terminator.cancel()
            if tokens is not None:
                tokens.cancel()

    async def _admit(self) -> bool:
        """Returns whether the containers may start."""
        problem = unsupported_feature(self.pod)
        if problem is not None:
            self._verdict = Verdict("UnexpectedAdmissionError", problem)
            return False
        policy = self.pod["spec"].get("restartPolicy", "Always")
        if _has_run(self.pod) and policy == "Never":
            self._record_lost_containers()
            return False
        for runner in self._main:
            runner.record.state = waiting("PodInitializing" if self._init else "ContainerCreating")
        self._changed()
        return await self._prepare_volumes()

    def _record_lost_containers(self) -> None:
        """Records containers lost in this node's restart. Their processes are dead, and how they
        ended is unknown.
        """
        now = datetime.now(UTC)
        message = "The container could not be located when the node came back"
        before = self.pod.get("status", {})
        statuses = before.get("containerStatuses", []) + before.get("initContainerStatuses", [])
        states = {status["name"]: status["state"] for status in statuses}
        for runner in (*self._init, *self._main):
            state = states.get(runner.record.name, {})
            lost = terminated(EXIT_KILLED, now, now, message, "ContainerStatusUnknown")
            runner.record.state = state if "terminated" in state else lost

    async def _prepare_volumes(self) -> bool:
        delay = RETRY_SECONDS_MIN
        while not self._stop.requested.is_set():
            try:
                await self._volumes.prepare()
            except ContainerConfigError as error:
                problem = str(error)
            except (ApiError, OSError, aiohttp.ClientError, TimeoutError) as error:
                problem = f"volumes: {error}"
            else:
                return True
            for runner in self._main:
                runner.record.state = waiting("ContainerCreating", problem)
            self._changed()
            await self._stop.wait(delay)
            delay = min(RETRY_SECONDS_MAX, delay * 2)
        return False

    async def _run_containers(self) -> None:
        policy = self.pod["spec"].get("restartPolicy", "Always")
        for runner in self._init:
            # An init container is not run again once it succeeded, whatever the policy is.
            await runner.run("OnFailure" if policy == "Always" else policy)
            if runner.record.exit_code != 0:
                return
        limit = self.pod["spec"].get("activeDeadlineSeconds")
        timer = asyncio.create_task(self._expire(float(limit))) if limit else None
        await asyncio.gather(*(runner.run(policy) for runner in self._main))
        if timer is not None:
            timer.cancel()

    async def _expire(self, limit_seconds: float) -> None:
        await asyncio.sleep(limit_seconds)
        message = "Pod was active on the node longer than the specified deadline"
        self._verdict = Verdict("DeadlineExceeded", message)
        grace = self.pod["spec"].get("terminationGracePeriodSeconds", GRACE_SECONDS_DEFAULT)
        self._stop.request(float(grace))

    async def _terminate_on_request(self) -> None:
        await self._stop.requested.wait()
        processes = [runner.process for runner in (*self._init, *self._main) if runner.process]
        for process in processes:
            process.terminate()
        # Checks repeatedly, because a later request may shorten the grace period.
        while not self._ended.is_set():
            left = self._stop.deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), min(left, 0.2))
        for runner in (*self._init, *self._main):
            if runner.process is not None:
                runner.process.kill()

    def _changed(self) -> None:
        self._in_background(self._publish())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _publish(self) -> None:
        """Writes the newest status, unless it is already written or the object is gone."""
        async with self._publishing:
            status = self._status()
            if status == self._published or self._gone.is_set():
                return
            namespace, name = self.name
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
            # The UID makes the server refuse the patch for a new pod of the same name.
            body = {"metadata": {"uid": self.uid}, "status": status}
            try:
                answer = await patiently(
                    lambda: self._api.request("PATCH", path, body, STRATEGIC_PATCH),
                    forbidden_is_later=True,
                )
            except ApiError as error:
                sys.stderr.write(f"status of {namespace}/{name} refused: {error}\n")
                return
            self._published = status
            self.pod["status"] = answer["status"]

    def _status(self) -> Json:
        init = [runner.record for runner in self._init]
        main = [runner.record for runner in self._main]
        status = pod_status(self.pod, init, main, datetime.now(UTC), self._verdict)
        return status | {
            "hostIP": HOST_IP,
            "hostIPs": [{"ip": HOST_IP}],
            "podIP": self._facts.pod_ip,
            "podIPs": [{"ip": self._facts.pod_ip}],
        }

    async def _delete_object(self) -> None:
        """Tries until the watch reports that the object is gone.

        An API server that has just started may refuse what it accepts a moment later.
        """
        namespace, name = self.name
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        body: Json = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        while not self._gone.is_set():
            with suppress(ApiError):
                await patiently(
                    lambda: self._api.request("DELETE", path, body), forbidden_is_later=True
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), DELETE_AGAIN_SECONDS)


def _has_run(pod: Json) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return any("waiting" not in status.get("state", {"waiting": {}}) for status in statuses)
