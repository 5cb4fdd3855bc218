"""Commands about clusters of kubelets: which cluster is meant, and how one ends."""

import os
import re
import signal
import time
from pathlib import Path

from gpujob_local.cluster.state import ClusterState, StateError, in_use
from gpujob_local.kubelets.cleaning import clean
from gpujob_local.kubelets.record import Record

DEFAULT_NODES = 2
DOWN_LIMIT_SECONDS = 90.0
POLL_SECONDS = 0.1
_NODES = re.compile(r"kubelet(?::(\d+))?")


def kubelets_wanted(nodes: str) -> int | None:
    """Returns the number of kubelets in `--nodes` (kubelet, or kubelet:3), or None for process
    nodes.
    """
    match = _NODES.fullmatch(nodes)
    if match is None:
        return None
    return int(match.group(1) or DEFAULT_NODES)


def has_kubelets(directory: Path) -> bool:
    return Record.read(directory) is not None


def clean_leftovers(directory: Path) -> bool:
    """Removes the remains of a crashed cluster of kubelets. Returns False if there were none.

    Raises `StateError` while its owner lives.
    """
    record = Record.read(directory)
    if record is None:
        return False
    if record.owned() or in_use(directory):
        raise StateError(f"cluster {directory.name!r} is up, starting or ending ({directory})")
    clean(record)
    return True


def end(directory: Path) -> None:
    """Makes the owner, if there is one, end its cluster, and removes what is left of it.

    Raises `StateError` if the owner does not end in time, and `ClusterError` if something is left.
    """
    owner = _owner(directory)
    if owner is not None:
        os.kill(owner, signal.SIGTERM)
        deadline = time.monotonic() + DOWN_LIMIT_SECONDS
        while in_use(directory):
            if time.monotonic() > deadline:
                raise StateError(
                    f"the owner of {directory} (process {owner}) does not end: look at its log, "
                    f"kill it and call `down` again"
                )
            time.sleep(POLL_SECONDS)
    clean_leftovers(directory)


def _owner(directory: Path) -> int | None:
    try:
        state = ClusterState.read(directory.name)
    except StateError:
        return None
    return state.owner_pid if state.alive() else None
