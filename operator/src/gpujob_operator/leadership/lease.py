"""Leader election by a coordination.k8s.io Lease: at most one process acts.

The holder renews the Lease five times within its duration. It stops acting at two thirds of the
duration, counted from before its last successful renewal. Another process takes over only after it
has seen the Lease unchanged for the whole duration. Both use their own monotonic clock, so wrong
wall clocks do not matter, and the remaining third covers a request in flight.

A renewal is one request, which replaces the Lease as the last one left it. A conflict means that
the Lease has changed since. One renewal may hang as long as a request may (5 s, a third of the
default duration) without ending leadership, because another one follows immediately.

The holder can leave its private state with the Lease for its successor (`Legacy`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpujob_operator.client.api_errors import ApiError, Conflict, NotFound
from gpujob_operator.client.kube import LEASES, Kube, Manifest
from gpujob_operator.read.shapes import identity
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

LEASE_SECONDS = 15.0
HOLD_FRACTION = 2 / 3
RENEWAL_FRACTION = 1 / 5
# The pause after a renewal that took longer than that.
PAUSE_FRACTION_MIN = 1 / 30
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    namespace: str
    identity: str
    name: str = "gpujob-operator"
    seconds: float = LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class Legacy:
    """An annotation of the Lease. It is written with every renewal and read once, before
    the first.
    """

    annotation: str
    write: Callable[[], str]
    read: Callable[[str], None]


class Leadership:
    """Acquires, renews and releases the Lease. `leads` is cheap enough to check before
    every write.
    """

    def __init__(
        self,
        kube: Kube,
        settings: LeaseSettings,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        changed: Callable[[bool], None] = lambda leads: None,
        restored: Callable[[], None] = lambda: None,
        legacy: Legacy | None = None,
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._monotonic = monotonic
        self._sleep = sleep
        self._changed = changed
        # Called if the Lease is older than before, because the data was restored from a backup.
        self._restored = restored
        # The Lease as the last renewal left it.
        self._renewed: Manifest | None = None
        # The UID and the newest version of the Lease that the API server has returned.
        self._seen: tuple[str, int] = ("", 0)
        self._legacy = legacy
        # Whether the last holder, if any, had not released the Lease when this process took it.
        # Requests of that holder may still arrive.
        self.in_doubt = False
        # Whether the legacy has been read since another process may have led.
        self._inherited = False
        self._held_until = float("-inf")
        self._said = False
        # The other holder's Lease, and since when it has not changed.
        self._observed: tuple[str, float] = ("", float("-inf"))
        # Time until the other holder's Lease ends if it does not change.
        self._left_seconds = settings.seconds

    @property
    def leads(self) -> bool:
        return self._monotonic() < self._held_until

    async def keep(self) -> None:
        """Runs until cancelled.

        It tries to acquire or renew the Lease five times within its duration, counted from the
        start of each try, and as soon as another holder's Lease has ended.
        """
        seconds = self._settings.seconds
        while True:
            started = self._monotonic()
            self._left_seconds = seconds
            leads = await self.try_once()
            due = started + seconds * RENEWAL_FRACTION
            if not leads:
                due = min(due, started + self._left_seconds)
            await self._sleep(max(due - self._monotonic(), seconds * PAUSE_FRACTION_MIN))

    async def try_once(self) -> bool:
        """Tries once to acquire or renew the Lease. Returns whether this process holds it now.

        Never raises.
        """
        started = self._monotonic()
        try:
            if await self._take(started):
                self._held_until = started + self._settings.seconds * HOLD_FRACTION
            elif self.leads:
                self._held_until = float("-inf")
        except ApiError as error:
            # A failed renewal does not end leadership, because the held Lease expires by itself.
            log.warning("lease attempt failed", error=str(error))
        self._say()
        return self.leads

    async def release(self, *, in_doubt: bool = False) -> None:
        """Releases the Lease so that a successor need not wait. Best effort.

        With `in_doubt`, the successor has to share this process's doubt about requests of earlier
        leaders. The Lease then keeps its holder, and ends after a second.
        """
        if not self.leads:
            return
        self._held_until = float("-inf")
        self._say()
        try:
            lease = await self._get()
            if lease is not None and lease["spec"].get("holderIdentity") == self._settings.identity:
                lease["spec"]["holderIdentity"] = self._settings.identity if in_doubt else ""
                lease["spec"]["leaseDurationSeconds"] = 1
                await self._replace(lease)
        except ApiError as error:
            log.warning("lease not released", error=str(error))

    async def _take(self, now: float) -> bool:
        renewed, self._renewed = self._renewed, None
        if renewed is not None and self.leads and await self._hold(renewed, now):
            return True
        lease = await self._get()
        return await self._create() if lease is None else await self._hold(lease, now)

    async def _hold(self, lease: Manifest, now: float) -> bool:
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
        if acquires or not self.leads:
            self.in_doubt = bool(holder)
            # Another process may have led since leadership was last reported, however briefly.
            # Writes that this process was about to make meanwhile were given up.
            self._said = False
        return True

    def _pass_on(self, metadata: Manifest, *, fresh: bool) -> None:
        """Reads the last holder's legacy, then writes this process's own."""
        if self._legacy is None:
            return
        annotations = dict(metadata.get("annotations") or {})
        if fresh or not self._inherited:
            self._legacy.read(annotations.get(self._legacy.annotation, ""))
            self._inherited = True
        annotations[self._legacy.annotation] = self._legacy.write()
        metadata["annotations"] = annotations

    def _expired(self, lease: Manifest, now: float) -> bool:
        """Returns whether another holder's Lease stayed unchanged for its whole duration.

        This process must have watched it all that time.
        """
        version = lease["metadata"]["resourceVersion"]
        seconds = float(lease["spec"].get("leaseDurationSeconds") or self._settings.seconds)
        if self._observed[0] != version:
            # Not the time when the try began, because the process may have been frozen since.
            self._observed = (version, self._monotonic())
            self._left_seconds = seconds
            return False
        self._left_seconds = seconds - (now - self._observed[1])
        return self._left_seconds <= 0

    async def _get(self) -> Manifest | None:
        try:
            lease = await self._kube.get(LEASES, self._settings.name, self._settings.namespace)
        except NotFound:
            return None
        before, now = self._seen, self._see(lease)
        if before[0] == now[0] and now[1] < before[1]:
            self._restored()
        return lease

    def _see(self, lease: Manifest) -> tuple[str, int]:
        found = identity(lease)
        self._seen = found.uid, found.version
        return self._seen

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
            found = await self._kube.create(LEASES, lease, self._settings.namespace)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return False
            raise
        self._see(found)
        self._renewed = found
        return True

    async def _replace(self, lease: Manifest) -> bool:
        """Replaces the Lease. The object's resourceVersion decides which process wins a race."""
        settings = self._settings
        try:
            found = await self._kube.replace(LEASES, settings.name, lease, settings.namespace)
        except (Conflict, NotFound):
            return False
        self._see(found)
        self._renewed = found
        return True

    def _say(self) -> None:
        if self.leads != self._said:
            self._said = self.leads
            log.info("leadership changed", leads=self.leads, identity=self._settings.identity)
            self._changed(self.leads)


def _now() -> str:
    return datetime.now(UTC).strftime(_TIME)
