"""Which objects are gone, and as of which version: an older state that comes late is not new.

The answer to a write comes within seconds, and a page of a list within a minute. So an object that
went is remembered for some minutes and not until many others have gone: where jobs come and go for
days, what is remembered does not grow for hours.
"""

from collections.abc import Callable
from datetime import datetime

from cachetools import TTLCache

REMEMBERED_MAX = 20_000
REMEMBERED_SECONDS = 300.0


class Tombstones:
    """Those of one kind, by UID."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._versions: TTLCache[str, int] = TTLCache(
            REMEMBERED_MAX, REMEMBERED_SECONDS, timer=lambda: clock().timestamp()
        )

    def __len__(self) -> int:
        return len(self._versions)

    def version(self, uid: str) -> int:
        """States up to this one are of before the object went; 0 if nothing is known of it."""
        return self._versions.get(uid, 0)

    def bury(self, uid: str, version: int) -> None:
        self._versions[uid] = max(version, self.version(uid))

    def forget_all(self) -> None:
        self._versions.clear()
