"""The worker in one process: nothing until a training library is imported, then passive hooks.

Started by `python_path` in every Python process of a run. Launchers, loader processes and programs
that only import torch never step an optimizer, and so nothing is started, said or reported in them.
What trains announces itself by its first step (`hooks`).
"""

from __future__ import annotations

import atexit
import os
import sys

from gpujob_worker.launch.first_process import is_first_process
from gpujob_worker.launch.import_hooks import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself is left to those who train
    from collections.abc import Callable

    from gpujob_worker.process import Process

LIBRARIES = ("accelerate", "jax", "lightning", "pytorch_lightning", "tensorflow", "transformers")
# Settings that a script gets by flags of its own.
_ARGUMENTS = ("batchPerStep", "scriptCheckpoint")

_process: Process | None = None
_watches = _is_broken = False


def start() -> None:
    """Watches for the imports of training libraries. Called again, it does nothing: the folder may
    stand on the path twice, under two names."""
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
    if is_first_process():
        # How it ends is reported even where it ends before it trains.
        _prepare()
    # Before the script reads its arguments, which may well be before it imports anything.
    asked = " ".join(os.environ.get(name, "") for name in ("GPUJOB_SETTINGS", "GPUJOB_OPTIONS"))
    if any(name in asked for name in _ARGUMENTS) and _is_script(sys.argv[0]):
        _prepare()
        _guarded(lambda process: process.adapt_arguments())


def _is_off(settings: str) -> bool:
    """Whether the job asks for nothing to be put into its script."""
    import json

    try:
        return json.loads(settings or "{}").get("mode") == "Off"
    except (ValueError, AttributeError):
        return False  # the worker reports what is wrong with them


def _is_script(program: str) -> bool:
    """A script, or a module that runs as one, rather than a child or an interactive session."""
    return program.endswith(".py") or program == "-m"


def this_process() -> Process:
    """Made once in a process. Raises what the worker's modules raise where they are broken."""
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
    """Where a training library came past the watch, nobody has said anything yet."""
    if _process is None and "torch.optim" in sys.modules:
        _prepare()
        _guarded(lambda process: process.end())


def _guarded(call: Callable[[Process], None]) -> None:
    """The script's import goes on whatever happens here; a process that trains has its own net."""
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
    """Without a module that may be what is broken."""
    try:
        sys.stderr.write(line)
    except (AttributeError, OSError, ValueError):
        return  # the script closed it
