"""kopf's settings: it writes nothing, and its watches never give up."""

import itertools
from collections.abc import Iterator
from typing import Any

import kopf

from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.jitter import jittered

# A stream without a bookmark for this long is dead.
INACTIVITY_SECONDS = 70.0
# Pause between kopf's tries of one request.
ERROR_SECONDS = 0.5
ERROR_SECONDS_MAX = 10.0
# How long kopf keeps an object's queue and task after its last event. A new task costs more than a
# waiting one, and in a burst each job has a waiting one.
IDLE_SECONDS = 2.0


class NothingStored(kopf.DiffBaseStorage, kopf.ProgressStorage):
    """Storage that keeps kopf from writing to objects and from comparing them.

    The handlers are level-triggered and need neither.
    """

    def __init__(self) -> None:
        super().__init__()

    def build(self, **_: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


class EndlessBackoffs:
    """The pauses between kopf's tries of one request, without end.

    kopf gives up the watch of a kind for good when it has no pause left. A server that has just
    started refuses every request (403) until it has read its roles.
    """

    def __iter__(self) -> Iterator[float]:
        for failures in itertools.count():
            yield jittered(backoff_seconds(ERROR_SECONDS, failures, ERROR_SECONDS_MAX))


def configure(settings: kopf.OperatorSettings) -> None:
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 5
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = EndlessBackoffs()
    settings.persistence.progress_storage = NothingStored()
    settings.persistence.diffbase_storage = NothingStored()
