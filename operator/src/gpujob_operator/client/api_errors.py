"""Errors of requests to the API server."""

from collections.abc import Mapping
from typing import Any

# How long a request waits after a 429 if the server names no pause, and the maximum.
SLOW_DOWN_SECONDS = 1.0
RETRY_AFTER_SECONDS_MAX = 10.0
# Messages of a 500 for a request that was not stored. Admission runs before storage, and an object
# that is too large is rejected before or by etcd.
_NOT_STORED = (
    "failed calling webhook",
    "failed calling admission webhook",
    "admission plugin",
    "request is too large",
    "message larger than max",
)


class ApiError(Exception):
    """A failed request to the API server. `status` is 0 if there was no answer."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiError):  # noqa: N818 - the API's own word
    pass


class Conflict(ApiError):  # noqa: N818 - the API's own word
    """The object changed since it was read (a precondition did not hold)."""


class AlreadyExists(ApiError):  # noqa: N818 - the API's own word
    pass


class Gone(ApiError):  # noqa: N818 - the API's own word
    """The resourceVersion to continue from is too old. List again."""


class Forbidden(ApiError):  # noqa: N818 - the API's own word
    pass


class Throttled(ApiError):  # noqa: N818 - the API's own word
    def __init__(self, message: str, retry_after_seconds: float | None) -> None:
        super().__init__(429, "TooManyRequests", message)
        self.retry_after_seconds = retry_after_seconds

    @property
    def pause_seconds(self) -> float:
        """How long to send fewer requests, in seconds: as the server asks, within bounds."""
        asked = self.retry_after_seconds or SLOW_DOWN_SECONDS
        return min(max(asked, SLOW_DOWN_SECONDS), RETRY_AFTER_SECONDS_MAX)


class Refused(ApiError):  # noqa: N818 - an answer, not a fault
    """A definite answer of 500. Nothing was written.

    Repeating the write fails until the cause that the message names is fixed (an admission webhook,
    the size of the object).
    """


class Unavailable(ApiError):  # noqa: N818 - the API's own word
    """5xx, a refused or broken connection, or a timeout. The write may have taken effect."""


class Silent(Unavailable):
    """Nothing arrived on a connection for too long."""


class TooLarge(ApiError):  # noqa: N818 - the API's own word
    """The answer exceeds the limit of what is kept in memory at once."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "TooLarge", message)


def error_of_status(status: int, body: Mapping[str, Any], retry_after: str | None) -> ApiError:
    """Returns the error of an answer. `body` is the API's Status object, `retry_after`
    the header.
    """
    reason, message = str(body.get("reason", "")), str(body.get("message", ""))
    if status == 429:
        seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
        return Throttled(message, seconds)
    if status == 409:
        kind = AlreadyExists if reason == "AlreadyExists" else Conflict
        return kind(status, reason, message)
    kinds = {404: NotFound, 410: Gone, 403: Forbidden}
    if status in kinds:
        return kinds[status](status, reason, message)
    if status >= 500:
        refused = status == 500 and any(words in message for words in _NOT_STORED)
        return (Refused if refused else Unavailable)(status, reason, message)
    return ApiError(status, reason, message)
