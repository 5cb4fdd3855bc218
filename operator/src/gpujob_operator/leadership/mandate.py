"""Whether this process may act: it holds the Lease, and its cache is complete."""

from dataclasses import dataclass

from gpujob_operator.leadership.cache_sync import CacheSync
from gpujob_operator.leadership.lease import Leadership


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
