"""Leadership by a coordination.k8s.io Lease: at most one process acts.

The holder renews three times within the lease's duration and stops acting at two thirds of it,
counted from before its last successful renewal; another takes over only after it has watched the
Lease unchanged for the whole duration. Both count with their own monotonic clock, so wrong wall
clocks do not matter, and a third of the duration covers a request that is still under way.

What only the holder knows can be left with the Lease for the next one (`Legacy`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpujob_operator.act.kube import LEASES, ApiError, Conflict, Kube, Manifest, NotFound
from gpujob_operator.logs import Log

log = Log(__name__)

LEASE_SECONDS = 15.0
HOLD_FRACTION = 2 / 3
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    namespace: str
    identity: str
    name: str = "gpujob-operator"
    seconds: float = LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class Legacy:
    """An annotation of the Lease, written with every renewal; read once, before the first."""

    annotation: str
    write: Callable[[], str]
    read: Callable[[str], None]


class Leadership:
    """Takes, keeps and gives back the Lease. `leads` is safe to ask before every write."""

    def __init__(
        self,
        kube: Kube,
        settings: LeaseSettings,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        changed: Callable[[bool], None] = lambda leads: None,
        legacy: Legacy | None = None,
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._monotonic = monotonic
        self._sleep = sleep
        self._changed = changed
        self._legacy = legacy
        # Whether the legacy was read since somebody else may have led.
        self._inherited = False
        self._held_until = float("-inf")
        self._said = False
        # The state of somebody else's Lease, and since when it is unchanged.
        self._observed: tuple[str, float] = ("", float("-inf"))

    @property
    def leads(self) -> bool:
        return self._monotonic() < self._held_until

    async def keep(self) -> None:
        """Runs until cancelled: tries every third of the duration."""
        while True:
            await self.try_once()
            await self._sleep(self._settings.seconds / 3)

    async def try_once(self) -> bool:
        """One attempt to take or renew the Lease; True if it is ours now. Raises nothing."""
        started = self._monotonic()
        try:
            if await self._take(started):
                self._held_until = started + self._settings.seconds * HOLD_FRACTION
            elif self.leads:
                self._held_until = float("-inf")
        except ApiError as error:
            # Not knowing is not losing: what we hold runs out by itself.
            log.warning("lease attempt failed", error=str(error))
        self._say()
        return self.leads

    async def release(self) -> None:
        """Gives the Lease back so that the next one need not wait. Best effort."""
        if not self.leads:
            return
        self._held_until = float("-inf")
        self._say()
        try:
            lease = await self._get()
            if lease is not None and lease["spec"].get("holderIdentity") == self._settings.identity:
                lease["spec"]["holderIdentity"] = ""
                lease["spec"]["leaseDurationSeconds"] = 1
                await self._replace(lease)
        except ApiError as error:
            log.warning("lease not released", error=str(error))

    async def _take(self, now: float) -> bool:
        lease = await self._get()
        if lease is None:
            return await self._create()
        spec: dict[str, Any] = lease.setdefault("spec", {})
        holder = spec.get("holderIdentity") or ""
        if holder and holder != self._settings.identity and not self._expired(lease, now):
            return False
        acquires = holder != self._settings.identity
        self._pass_on(lease["metadata"], fresh=acquires)
        if acquires:
            spec["acquireTime"] = _now()
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec["holderIdentity"] = self._settings.identity
        spec["leaseDurationSeconds"] = max(1, round(self._settings.seconds))
        spec["renewTime"] = _now()
        if not await self._replace(lease):
            return False
        if acquires:
            # Somebody else led since we last said so, however short it was.
            self._said = False
        return True

    def _pass_on(self, metadata: Manifest, *, fresh: bool) -> None:
        """Takes over what the last holder knew, then leaves what we know."""
        if self._legacy is None:
            return
        annotations = dict(metadata.get("annotations") or {})
        if fresh or not self._inherited:
            self._legacy.read(annotations.get(self._legacy.annotation, ""))
            self._inherited = True
        annotations[self._legacy.annotation] = self._legacy.write()
        metadata["annotations"] = annotations

    def _expired(self, lease: Manifest, now: float) -> bool:
        """Somebody else's Lease did not change for its whole duration while we looked."""
        version = lease["metadata"]["resourceVersion"]
        if self._observed[0] != version:
            self._observed = (version, now)
            return False
        seconds = float(lease["spec"].get("leaseDurationSeconds") or self._settings.seconds)
        return now - self._observed[1] >= seconds

    async def _get(self) -> Manifest | None:
        try:
            return await self._kube.get(LEASES, self._settings.name, self._settings.namespace)
        except NotFound:
            return None

    async def _create(self) -> bool:
        now = _now()
        lease: Manifest = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._settings.name, "namespace": self._settings.namespace},
            "spec": {
                "holderIdentity": self._settings.identity,
                "leaseDurationSeconds": max(1, round(self._settings.seconds)),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }
        self._pass_on(lease["metadata"], fresh=True)
        try:
            await self._kube.create(LEASES, lease, self._settings.namespace)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return False
            raise
        return True

    async def _replace(self, lease: Manifest) -> bool:
        """The resourceVersion in the object decides who wins a race."""
        settings = self._settings
        try:
            await self._kube.replace(LEASES, settings.name, lease, settings.namespace)
        except (Conflict, NotFound):
            return False
        return True

    def _say(self) -> None:
        if self.leads != self._said:
            self._said = self.leads
            log.info("leadership changed", leads=self.leads, identity=self._settings.identity)
            self._changed(self.leads)


def _now() -> str:
    return datetime.now(UTC).strftime(_TIME)
