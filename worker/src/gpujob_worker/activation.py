"""The worker in one process: it does nothing until a training library is imported, and then adds
passive hooks.

`python_path` starts it in every Python process of a run. Launchers, loader processes and programs
that only import torch never step an optimizer, so nothing is started, logged or reported in them. A
process that trains is recognized by its first step (`hooks`).
"""

from __future__ import annotations

import atexit
import os
import sys

from gpujob_worker.launch.first_process import is_first_process, is_rank_of_first_process
from gpujob_worker.launch.import_hooks import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:  # even `typing` is imported only in processes that train
    from collections.abc import Callable

    from gpujob_worker.process import Process

LIBRARIES = ("accelerate", "jax", "lightning", "pytorch_lightning", "tensorflow", "transformers")
# Settings that a script gets through its own flags.
_ARGUMENTS = ("batchPerStep", "scriptCheckpoint")

_process: Process | None = None
_watches = _is_broken = False


def start() -> None:
    """Watches for the imports of training libraries. Idempotent, because the folder may be on the
    path twice, under two names.
    """
    global _watches
    if _watches:
        return
    _watches = True
    atexit.register(_end)
    directory = os.environ.get("GPUJOB_CHECKPOINT_DIR", "")
    if directory.strip():
        from gpujob_worker.resume import rerun, seeds

        rerun.install(directory)
        if _is_script(sys.argv[0]) and not _is_off(os.environ.get("GPUJOB_SETTINGS", "")):
            seeds.begin_alike(directory)
    when_imported("torch", _torch_is_there, before=_prepare)
    for name in LIBRARIES:
        when_imported(name, before=_prepare)
    if is_first_process() or is_rank_of_first_process():
        # Its end is reported even if it ends before it trains.
        _prepare()
    # The script reads its arguments later, possibly before it imports anything.
    asked = " ".join(os.environ.get(name, "") for name in ("GPUJOB_SETTINGS", "GPUJOB_OPTIONS"))
    if any(name in asked for name in _ARGUMENTS) and _is_script(sys.argv[0]):
        _prepare()
        _guarded(lambda process: process.adapt_arguments())


def _is_off(settings: str) -> bool:
    """Returns whether the job wants nothing injected into its script."""
    import json

    try:
        return json.loads(settings or "{}").get("mode") == "Off"
    except (ValueError, AttributeError):
        return False  # the worker reports the error in the settings


def _is_script(program: str) -> bool:
    """Returns whether the program is a script or a module run as one, and no child or interactive
    session.
    """
    return program.endswith(".py") or program == "-m"


def this_process() -> Process:
    """Returns this process's worker, made once. Raises the errors of the worker's modules if they
    are broken.
    """
    global _process
    if _process is None:
        from gpujob_worker.process import Process

        _process = Process()
    return _process


def _prepare() -> None:
    _guarded(lambda process: process.prepare())


def _torch_is_there() -> None:
    _guarded(lambda process: process.torch_is_there())


def _end() -> None:
    """Prepares late if a training library bypassed the watch, because nothing was logged then."""
    if _process is None and "torch.optim" in sys.modules:
        _prepare()
        _guarded(lambda process: process.end())


def _guarded(call: Callable[[Process], None]) -> None:
    """Keeps errors from the script's import. A process that trains has its own net."""
    global _is_broken
    if _is_broken:
        return
    try:
        call(this_process())
    except Exception as error:
        _is_broken = True
        reason = f"the worker cannot be put in: {type(error).__name__}: {error}"
        _say(f"gpujob: everything skipped: {reason}; the script runs as written\n")


def _say(line: str) -> None:
    """Prints without a module, because a module may be what is broken."""
    try:
        sys.stderr.write(line)
    except (AttributeError, OSError, ValueError):
        return  # the script closed it
