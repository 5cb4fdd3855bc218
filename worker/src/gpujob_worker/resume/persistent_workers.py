"""Loaders whose worker processes live on from pass to pass (`persistent_workers=True`).

The first pass makes the processes, and draws a seed for them; the later ones only begin the order
again. What the processes keep of earlier passes (their random numbers, a cache) nobody can read, so
a loader is brought back only if reading samples leaves nothing behind.
"""

import multiprocessing
import warnings
import weakref
from multiprocessing.connection import Connection
from typing import Any

import torch

from gpujob_worker.inject.loader_refusal import own_draws_refusal, reading_refusal

# For two small batches.
READ_SECONDS_MAX = 60.0

_known: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()


def is_begun(loader: Any) -> bool:
    """Whether its processes are there: a pass that begins now only begins the order again."""
    return _lives_on(loader) and getattr(loader, "_iterator", None) is not None


def memory_refusal(loader: Any) -> str | None:
    """Why new processes would not go on as those that are there. Has a few samples read, once."""
    if not _lives_on(loader):
        return None
    if loader not in _known:
        _known[loader] = _refusal(loader)
    return _known[loader]


def _lives_on(loader: Any) -> bool:
    return bool(getattr(loader, "persistent_workers", False)) and loader.num_workers > 0


def _refusal(loader: Any) -> str | None:
    why = _read_elsewhere(loader)
    if why is None:
        return None
    if why == own_draws_refusal(loader):
        why = "they draw random numbers"
    return (
        "what worker processes keep from pass to pass cannot be put back (persistent_workers=False"
        f" has them begin anew): {why}"
    )


def _read_elsewhere(loader: Any) -> str | None:
    """Reads in a process that is forked as the loader's own are: a cache here must not see it."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_tell, args=(loader, sender), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a process with threads forks, as the loader does
        child.start()
    sender.close()
    try:
        if receiver.poll(READ_SECONDS_MAX):
            return receiver.recv()
        return f"reading two small batches takes longer than {READ_SECONDS_MAX:.0f} s"
    except EOFError:
        return "a process that read samples ended"
    finally:
        receiver.close()
        child.kill()
        child.join()


def _tell(loader: Any, sender: Connection) -> None:
    torch.set_num_threads(1)  # those of the process that forked are not here
    sender.send(reading_refusal(loader))
