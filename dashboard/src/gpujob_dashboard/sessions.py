"""Who is signed in: a random id in a cookie stands for a token that stays in memory."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

COOKIE = "gpujob_session"
SESSION_SECONDS = 12 * 3600.0
SESSIONS_MAX = 1000
# Attempts to sign in, of all people together, in a minute.
ATTEMPTS_MAX = 60
_MINUTE = 60.0


@dataclass(slots=True)
class Sessions:
    """The sessions of a server. `seconds` is a monotonic clock."""

    seconds: Callable[[], float]
    _tokens: dict[str, tuple[float, str]] = field(default_factory=dict[str, tuple[float, str]])
    _attempts: list[float] = field(default_factory=list[float])

    def begin(self, token: str) -> str:
        """Returns the id of a new session. The oldest ends if there are too many."""
        now = self.seconds()
        self._tokens = {key: one for key, one in self._tokens.items() if one[0] > now}
        while len(self._tokens) >= SESSIONS_MAX:
            del self._tokens[next(iter(self._tokens))]
        session = secrets.token_urlsafe(32)
        self._tokens[session] = now + SESSION_SECONDS, token
        return session

    def token(self, session: str | None) -> str | None:
        """Returns the token of a session that has not ended."""
        ends, token = self._tokens.get(session or "", (0.0, ""))
        return token if ends > self.seconds() else None

    def end(self, session: str | None) -> None:
        self._tokens.pop(session or "", None)

    def may_attempt(self) -> bool:
        """Counts an attempt to sign in. Returns False if there were too many within a minute."""
        now = self.seconds()
        self._attempts = [at for at in self._attempts if at > now - _MINUTE]
        if len(self._attempts) >= ATTEMPTS_MAX:
            return False
        self._attempts.append(now)
        return True
