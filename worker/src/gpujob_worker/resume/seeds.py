"""One seed for all attempts of a run, for generators that the script does not seed itself.

On its way back a script draws again what it drew before its first step: data, splits, weights. It
draws the same only if its generators start equally. A generator gets its seed when its module is
imported, so a script that seeds it afterwards has its own.

Each script of a run with a checkpoint directory imports this, so it imports little.
"""

from __future__ import annotations

import os
import sys

FILE = "seed"
_SEEDS = 1 << 32


def seed_of(directory: str) -> int | None:
    """Returns the run's seed, drawn by its first attempt, or None if it can be neither read nor
    stored.
    """
    path = os.path.join(directory, FILE)
    known = _read(path)
    if known is not None:
        return known
    drawn = int.from_bytes(os.urandom(4), "big")
    try:
        os.makedirs(directory, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(str(drawn))
    except FileExistsError:
        return _read(path)  # another process of the run was faster
    except OSError:
        return None
    return drawn


def _read(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as stream:
            return int(stream.read(20))
    except (OSError, ValueError):
        return None


def begin_alike(directory: str) -> None:
    """Seeds each generator once its module is imported. Processes of a group differ by rank."""
    seed = seed_of(directory)
    if seed is None:
        return
    rank = os.environ.get("RANK", "0")
    own = (seed + (int(rank) if rank.isdigit() else 0)) % _SEEDS

    from gpujob_worker.launch.import_hooks import when_imported

    when_imported("random", lambda: sys.modules["random"].seed(own))
    when_imported("numpy.random", lambda: sys.modules["numpy.random"].seed(own))
    when_imported("torch", lambda: sys.modules["torch"].manual_seed(own))
