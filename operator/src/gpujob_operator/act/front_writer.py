"""Writes the Service in front of a GPUService's replicas, or of their gate.

A Service is not watched. It is looked at once a minute, and when it has to select other pods.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from gpujob_api.gpuservice import GPUService
from gpujob_operator.act.service_writer import MESSAGE_CHARACTERS_MAX, REFUSED_PAUSE, belongs
from gpujob_operator.client.api_errors import AlreadyExists, ApiError, Conflict
from gpujob_operator.client.kube import SERVICES, Kube, Manifest
from gpujob_operator.read.shapes import mapping
from gpujob_operator.render.gpuservice import core_service, front_selector
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

# One that somebody deleted is created again after this time.
CHECKED_EVERY = timedelta(seconds=60)


class FrontWriter:
    """Creates Services, and changes what they select. Raises nothing but cancellation."""

    def __init__(self, kube: Kube, *, may_act: Callable[[], bool]) -> None:
        self._kube = kube
        self._may_act = may_act
        # When the Service is requested again, by UID.
        self._next_at: dict[str, datetime] = {}
        # Whether the Service selects the gate, by UID.
        self._selects: dict[str, bool] = {}
        self._problems: dict[str, str] = {}

    def problem(self, uid: str) -> str:
        """Returns why there is no Service in front of the replicas, or ""."""
        return self._problems.get(uid, "")

    def selects_gate(self, uid: str) -> bool | None:
        """Returns whether the Service selects the gate. None if this process has not written or
        read it.
        """
        return self._selects.get(uid)

    def forget_others(self, uids: set[str]) -> None:
        """Forgets services that are gone."""
        for kept in (self._next_at, self._selects, self._problems):
            for uid in kept.keys() - uids:
                del kept[uid]

    async def write(self, service: GPUService, now: datetime, *, to_gate: bool = False) -> None:
        """Creates the Service if there is none, and lets it select the gate or the replicas. Does
        nothing in most rounds.
        """
        uid = service.metadata.uid
        turned = self._selects.get(uid, to_gate) is not to_gate
        pause_over = self._next_at.get(uid, now) <= now
        if not self._may_act() or not (pause_over or (turned and uid not in self._problems)):
            return
        self._next_at[uid] = now + REFUSED_PAUSE
        name = service.metadata.name
        try:
            text = await self._put(service, to_gate=to_gate)
        except Conflict:
            # Somebody changed the Service meanwhile, so it is read again.
            return
        except ApiError as error:
            text = f"Service {name}: {error}"
        if text:
            self._refused(service, text)
            return
        self._next_at[uid] = now + CHECKED_EVERY
        self._selects[uid] = to_gate
        self._problems.pop(uid, None)

    async def _put(self, service: GPUService, *, to_gate: bool) -> str:
        """Returns why the Service is not the one that is wanted, or ""."""
        name, namespace = service.metadata.name, service.metadata.namespace
        try:
            await self._kube.create(SERVICES, core_service(service, to_gate=to_gate), namespace)
        except AlreadyExists:
            found = await self._kube.get(SERVICES, name, namespace)
        else:
            return ""
        if not belongs(found, service.metadata.uid):
            text = f'services "{name}" exists and is not of this GPUService: delete it'
            return f"{text}, or create the GPUService under another name"
        wanted = front_selector(service, to_gate=to_gate)
        if mapping(mapping(found.get("spec")).get("selector")) != wanted:
            changed: Manifest = {**found, "spec": {**found["spec"], "selector": wanted}}
            await self._kube.replace(SERVICES, name, changed, namespace)
            log.info("service changed", service=service.metadata.key, to_gate=to_gate)
        return ""

    def _refused(self, service: GPUService, text: str) -> None:
        uid, kept = service.metadata.uid, text[:MESSAGE_CHARACTERS_MAX]
        if self._problems.get(uid) != kept:
            log.warning("service refused", service=service.metadata.key, problem=text)
        self._problems[uid] = kept
