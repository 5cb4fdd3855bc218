"""Runs one container of a pod to its end, including restarts, and keeps its record up to date."""

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.gpus.driver import CUDA_DEVICES
from gpujob_local.kubelet.container_process import (
    ContainerProcess,
    ProcessSpecification,
    StartError,
)
from gpujob_local.kubelet.dns import find_addresses
from gpujob_local.kubelet.image_environment import image_environment, local_paths
from gpujob_local.kubelet.node_api import NodeApi
from gpujob_local.kubelet.pod_environment import (
    ContainerConfigError,
    Json,
    PathMap,
    PodFacts,
    build_command,
    build_environment,
    referenced_objects,
)
from gpujob_local.kubelet.pod_status import (
    ContainerRecord,
    exit_code_of,
    running,
    terminated,
    termination_message,
    waiting,
)
from gpujob_local.kubelet.pod_volumes import PodVolumes, text_data
from gpujob_local.kubelet.readiness import keep_probing, probe_of
from gpujob_local.processes.launch import EXIT_START_ERROR
from gpujob_operator.agent.cpu.cards import CpuCard

RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.2, 2.0
# Shorter than a kubelet's 10 s to 5 min, because a local cluster is there to be watched.
RESTART_SECONDS_MIN, RESTART_SECONDS_MAX = 1.0, 30.0
LOG_TAIL_BYTES = 8192


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings that all pods of a node share. `images` maps image names to local folders."""

    name: str
    folder: Path
    shared_volumes: Path
    images: dict[str, Path]
    cards: tuple[CpuCard, ...]
    environment: dict[str, str]
    gpus: tuple[str, ...] = ()


class Stop:
    """A request to end a pod. A later one can only shorten the grace period."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.deadline = float("inf")

    def request(self, grace_seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + grace_seconds
        self.deadline = min(self.deadline, deadline)
        self.requested.set()

    async def wait(self, limit_seconds: float) -> bool:
        """Returns True as soon as a stop is requested, and False after the limit."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.requested.wait(), limit_seconds)
        return self.requested.is_set()


class ContainerRunner:
    """Runs a container. `run` returns when it will not run again."""

    def __init__(
        self,
        container: Json,
        facts: PodFacts,
        volumes: PodVolumes,
        settings: NodeSettings,
        stop: Stop,
        changed: Callable[[], None],
    ) -> None:
        self.record = ContainerRecord(container["name"], container["image"])
        self.process: ContainerProcess | None = None
        self._container = container
        self._facts = facts
        self._volumes = volumes
        self._settings = settings
        self._stop = stop
        self._changed = changed
        self._folder = volumes.folder.parent / "containers" / container["name"]
        self._termination_file = self._folder / "termination-log"

    @property
    def log(self) -> Path:
        return self._folder / "log"

    async def run(self, restart_policy: str) -> None:
        delay = RESTART_SECONDS_MIN
        while not self._stop.requested.is_set():
            await self._run_once()
            code = self.record.exit_code
            if code is None or not _restarts(restart_policy, code):
                return
            if self._stop.requested.is_set():
                return
            ended = self.record.state
            self.record.last_state = ended
            self._set(waiting("CrashLoopBackOff", f"back-off {delay:.0f}s restarting"))
            if await self._stop.wait(delay):
                self._set(ended)
                return
            self.record.restart_count += 1
            delay = min(RESTART_SECONDS_MAX, delay * 2)

    def _set(self, state: Json) -> None:
        self.record.state = state
        self._changed()

    async def _run_once(self) -> None:
        started_at = datetime.now(UTC)
        try:
            process = await self._started()
        except StartError as error:
            message = f"failed to start container: {error}"
            self._set(self._ended(EXIT_START_ERROR, started_at, message, "StartError"))
            return
        if process is None:
            return
        if self._stop.requested.is_set():
            process.terminate()
        prober = self._start_probing()
        self._set(running(started_at))
        code = exit_code_of(await process.wait())
        if prober is not None:
            prober.cancel()
        self.process = None
        message = await asyncio.to_thread(self._termination_message, code)
        self._set(self._ended(code, started_at, message))

    def _start_probing(self) -> "asyncio.Task[None] | None":
        probe = probe_of(self._container, self._facts.pod_ip)
        if probe is None:
            return None
        self.record.probe_succeeds = False
        return asyncio.create_task(keep_probing(probe, self._probed))

    def _probed(self, ready: bool) -> None:
        self.record.probe_succeeds = ready
        self._changed()

    async def _started(self) -> ContainerProcess | None:
        """Returns the started process, or None if the pod is stopped before it can start."""
        delay = RETRY_SECONDS_MIN
        while not self._stop.requested.is_set():
            try:
                process = ContainerProcess(await self._specification())
                await process.start()
            except ContainerConfigError as error:
                self._set(waiting(error.reason, str(error)))
            except (OSError, ApiError, TimeoutError) as error:
                self._set(waiting("CreateContainerError", str(error)))
            else:
                number = self.record.restart_count
                self.record.container_id = f"process://{process.pid}-{number}"
                self.process = process
                return process
            await self._stop.wait(delay)
            delay = min(RETRY_SECONDS_MAX, delay * 2)
        return None

    async def _specification(self) -> ProcessSpecification:
        folder = await asyncio.to_thread(self._prepare_folder)
        path = self._container.get("terminationMessagePath", "/dev/termination-log")
        mounts = self._volumes.mounts(self._container)
        paths = PathMap({**local_paths(), **mounts, path: str(self._termination_file)})
        values = build_environment(self._container, self._facts, await self._objects())
        words = build_command(self._container, values, paths)
        names = await find_addresses(self._volumes.api, [*values.values(), *words])
        environment = self._base_environment() | {
            name: names.rewrite(paths.rewrite(value)) for name, value in values.items()
        }
        devices = self._devices(values.get("NVIDIA_VISIBLE_DEVICES", ""))
        # No container toolkit hides the other devices, so CUDA itself has to.
        environment[CUDA_DEVICES] = ",".join(d for d in devices if d in self._settings.gpus)
        cores = self._cores(devices)
        if cores:
            environment.setdefault("OMP_NUM_THREADS", str(len(cores)))
        return ProcessSpecification(
            identity=f"{self._facts.pod['metadata']['uid']}/{self._container['name']}",
            command=[names.rewrite(word) for word in words],
            environment=environment,
            folder=self._working_folder(folder, paths),
            log=self.log,
            cores=cores,
        )

    def _prepare_folder(self) -> Path:
        """Makes a fresh copy of the image's folder, so that a container's writes are its own."""
        image = self._settings.images.get(self._container["image"])
        if image is None:
            known = ", ".join(sorted(self._settings.images)) or "none"
            raise ContainerConfigError(
                f"process nodes run no images, only commands in a folder; image "
                f"{self._container['image']} has none (known: {known})",
                reason="ErrImagePull",
            )
        root = self._folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(image, root, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("home", "tmp"):
            (self._folder / name).mkdir(exist_ok=True)
        self._termination_file.write_bytes(b"")
        return root

    def _working_folder(self, root: Path, paths: PathMap) -> Path:
        wanted = self._container.get("workingDir")
        if not wanted:
            return root
        local = paths.rewrite(wanted)
        if local == wanted:
            raise ContainerConfigError(
                f"workingDir {wanted} is below no mountPath, so it does not exist on process nodes"
            )
        return Path(local)

    def _base_environment(self) -> dict[str, str]:
        return (
            self._settings.environment
            | image_environment()
            | {
                "HOME": str(self._folder / "home"),
                "TMPDIR": str(self._folder / "tmp"),
                "HOSTNAME": self._facts.pod["metadata"]["name"],
            }
        )

    def _devices(self, visible: str) -> list[str]:
        """Returns the UUIDs of the container's cards and GPUs."""
        names = [name for name in visible.split(",") if name not in ("", "all", "none", "void")]
        known = {*(card.uuid for card in self._settings.cards), *self._settings.gpus}
        for name in names:
            if name not in known:
                raise StartError(f"unknown device: {name} is no card of {self._settings.name}")
        return names

    def _cores(self, devices: Sequence[str]) -> list[int] | None:
        """Returns the cores of the container's cards, or None for all cores."""
        return sorted({c.core for c in self._settings.cards if c.uuid in devices}) or None

    async def _objects(self) -> dict[tuple[str, str], dict[str, str] | None]:
        api: NodeApi = self._volumes.api
        namespace = self._facts.pod["metadata"]["namespace"]
        result: dict[tuple[str, str], dict[str, str] | None] = {}
        for kind, name in referenced_objects(self._container):
            path = f"/api/v1/namespaces/{namespace}/{kind.lower()}s/{name}"
            try:
                result[kind, name] = dict(text_data(await api.get(path), kind == "Secret"))
            except ApiError as error:
                if error.code not in (403, 404):
                    raise
                result[kind, name] = None
        return result

    def _termination_message(self, exit_code: int) -> str:
        policy = self._container.get("terminationMessagePolicy", "File")
        with suppress(OSError):
            content = self._termination_file.read_bytes()
            return termination_message(content, _tail(self.log), exit_code, policy)
        return ""

    def _ended(self, code: int, started_at: datetime, message: str, reason: str = "") -> Json:
        identity = self.record.container_id
        return terminated(code, started_at, datetime.now(UTC), message, reason, identity)


def _restarts(restart_policy: str, exit_code: int) -> bool:
    return restart_policy == "Always" or (restart_policy == "OnFailure" and exit_code != 0)


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES))
        return file.read()
