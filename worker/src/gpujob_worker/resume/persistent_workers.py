"""Loaders whose worker processes live on from pass to pass (`persistent_workers=True`).

The first pass starts the processes and draws a seed for them. Later passes only restart the order.
The state that the processes keep of earlier passes (random numbers, a cache) cannot be read, so a
loader is brought back only if reading samples leaves no state behind.
"""

import multiprocessing
import warnings
import weakref
from multiprocessing.connection import Connection
from typing import Any

import torch

from gpujob_worker.inject.loader_refusal import own_draws_refusal, reading_refusal

# Seconds for two small batches.
READ_SECONDS_MAX = 60.0

_known: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()


def is_begun(loader: Any) -> bool:
    """Returns whether its processes exist, so that the next pass only restarts the order."""
    return _lives_on(loader) and getattr(loader, "_iterator", None) is not None


def memory_refusal(loader: Any) -> str | None:
    """Returns why new processes would differ from the existing ones, or None. It reads a few
    samples, once.
    """
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
    """Reads in a forked process like the loader's own, so that a cache here does not see it."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_tell, args=(loader, sender), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a process with threads forks, as the loader does
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
    torch.set_num_threads(1)  # the threads of the parent process do not exist here
    sender.send(reading_refusal(loader))
