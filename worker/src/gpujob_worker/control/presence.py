"""Checks whether all processes that train together run under the worker, and under the same one.

Each process announces itself in the store through which they found each other, as soon as they
have. Settings that must be the same in all (a type, a kernel) are applied in none if one is
missing, because it would not know the others' settings.
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

# Seconds to wait. All processes come through the same start of the group, so only a slow store
# needs any of it.
SECONDS_MAX = 10.0
POLL_SECONDS = 0.02


def meet_others(session: Session, facts: ScriptFacts) -> None:
    """Called once the process group has started; announces this process to the others."""
    found = process_group()
    if found is None or found[1] == 1:
        return
    session.joins(*found)
    facts.processes = session.world_size
    if session.optimizes:
        group_store().set(_key(session.rank), digest(session))


def digest(session: Session) -> str:
    """Returns a digest that is equal in processes that decide alike."""
    settings = json.dumps(encode(session.environment.settings), sort_keys=True)
    off = sorted(session.features.off)
    text = f"{settings} {off} {torch.__version__}"
    return f"{zlib.crc32(text.encode()):08x}"


def require_all(session: Session, store: KeyValues | None = None) -> str | None:
    """Returns why nothing may be applied that must be the same in all; switches it off here too.

    Every process gets the same result, because announcements stay in the store.
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
    """Returns which processes are missing or differ, or None if all are alike."""
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
