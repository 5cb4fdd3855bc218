"""Whether this process may act: it holds the Lease, and decisions may rely on its cache.

They may rely on it once everything was listed since this process began to lead, and since the API
server's data was last restored.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpujob_operator.act.executor import Executor
from gpujob_operator.leadership.lease import Leadership
from gpujob_operator.observe.cache import Cache
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)


class CacheSync:
    """Nothing is decided, and no changing request is sent, until `synced`."""

    def __init__(self, cache: Cache, dirty: Dirty) -> None:
        self.synced = False
        self._cache = cache
        self._dirty = dirty
        self._lost = asyncio.Event()
        # Whether the API server's data was restored while this process ran.
        self._lost_data = False

    def leads_changed(self, leads: bool) -> None:
        """Makes a new leader list everything again before it decides."""
        self.synced = False
        if leads:
            self.lose()
        self._dirty.mark()

    def lose(self) -> None:
        """Requires a new list of everything, because the cache may be outdated."""
        self.synced = False
        self._lost.set()

    def restored(self) -> None:
        """Handles a restored backup of the API server. Nothing is decided on states from
        before it.
        """
        log.warning("data of the API server restored")
        self._lost_data = True
        self._cache.begin_another_history()
        self.lose()

    async def keep(
        self,
        refresh: Callable[[], Awaitable[None]],
        executor: Executor,
        leadership: Leadership,
    ) -> None:
        """Lists everything by `refresh` after each loss. Never returns.

        Writes that were decided before end first. A write that is to be repeated would otherwise be
        sent after the cache is synced again, as if it had been decided on the newer state.
        """
        while True:
            await self._lost.wait()
            await executor.ended()
            self._lost.clear()
            try:
                await refresh()
            except Exception:
                # The list is repeated when this part is restarted.
                self._lost.set()
                raise
            # If sync was lost again during the list, list again.
            self.synced = not self._lost.is_set()
            if self.synced:
                in_doubt = leadership.in_doubt or self._lost_data
                self._cache.begin_to_lead(in_doubt=in_doubt)
                log.info("listed everything and decides from now on", in_doubt=in_doubt)
            self._dirty.mark()


@dataclass(frozen=True, slots=True)
class Mandate:
    """The mandate, cheap enough to check before every write."""

    leadership: Leadership
    sync: CacheSync

    def leads(self) -> bool:
        return self.leadership.leads

    def may_act(self) -> bool:
        """Returns whether everything was listed since this process began to lead.

        It does not know which attempts are in force before that.
        """
        return self.leadership.leads and self.sync.synced

    def missing(self) -> list[str]:
        """Returns what this process lacks in order to act, in words."""
        parts = {"the Lease": self.leadership.leads, "a complete cache": self.sync.synced}
        return [name for name, is_there in parts.items() if not is_there]
