"""Whether all processes that train together run under the worker, and under the same one.

Each says so in the store where they found each other, as soon as they have. What must be the same
in all (a type, a kernel) is applied in none where one is missing: it would follow settings that the
others do not know.
"""

import json
import time
import zlib
from collections.abc import Callable

import torch

from gpujob_api.codec import encode
from gpujob_worker.checkpoint.ballot import KeyValues, named
from gpujob_worker.inject.ddp import group_store, process_group
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.run.session import Session
from gpujob_worker.tune.registry import SETTINGS

# All have come through the same start of the group; only a store that is slow needs any of it.
SECONDS_MAX = 10.0
POLL_SECONDS = 0.02


def meet_others(session: Session, facts: ScriptFacts) -> None:
    """The process group has started: this process is one of it, and says that it is here."""
    found = process_group()
    if found is None or found[1] == 1:
        return
    session.joins(*found)
    facts.processes = session.world_size
    if session.optimizes:
        group_store().set(_key(session.rank), digest(session))


def digest(session: Session) -> str:
    """Alike in processes that decide alike."""
    settings = json.dumps(encode(session.environment.settings), sort_keys=True)
    off = sorted(session.features.off)
    text = f"{settings} {off} {torch.__version__}"
    return f"{zlib.crc32(text.encode()):08x}"


def require_all(session: Session, store: KeyValues | None = None) -> str | None:
    """Why nothing may be applied that must be the same in all; then it is switched off here too.

    Every process comes to the same answer: what others said stays in the store.
    """
    if session.world_size == 1 or process_group() is None:
        return None
    reason = absence(store or group_store(), session.world_size, digest(session))
    if reason is not None:
        session.switch_off(setting.NAME for setting in SETTINGS if not setting.OWN)
        session.log.skipped("processes", reason)
    return reason


def absence(
    store: KeyValues,
    size: int,
    expected: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> str | None:
    """Which processes are not here, or differ; None where all are alike."""
    ends = clock() + SECONDS_MAX
    missing = list(range(size))
    while missing and clock() < ends:
        missing = [rank for rank in missing if not store.check([_key(rank)])]
        if missing:
            pause(POLL_SECONDS)
    if missing:
        return f"{named(missing, size)} run without the worker; nothing is shared with them"
    others = [rank for rank in range(size) if store.get(_key(rank)).decode() != expected]
    if others:
        return f"{named(others, size)} have other settings or another torch"
    return None


def _key(rank: int) -> str:
    return f"present/{rank}"
