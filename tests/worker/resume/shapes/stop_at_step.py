"""Stops a process at one of its optimizer steps, from outside of the script that it runs.

The steps are those of this process. Their number is kept in a C counter that no variable of the
script reaches, so a resume cannot put it back. This is run by its path, in the process of a zygote
as well as by a real one's `sitecustomize`.
"""

import atexit
import itertools
import os
import signal
import sys
from typing import Any

# The optimizer step at which a signal is sent (0: never), before or after it is made; the signal.
ENV_STOP_AT, ENV_STOP_WHEN, ENV_STOP_SIGNAL = "STOP_AT", "STOP_WHEN", "STOP_SIGNAL"
# A file that gets the number of steps at the end.
ENV_STEPS_FILE = "STEPS_FILE"
# Written to the standard error output: what comes before it was known before the stop.
MARK = "== stopped"


def install() -> None:
    """Once torch was imported."""
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    stop_at, path = int(os.environ.get(ENV_STOP_AT, "0")), os.environ.get(ENV_STEPS_FILE)
    number = int(os.environ.get(ENV_STOP_SIGNAL, str(int(signal.SIGTERM))))
    process, steps = os.getpid(), itertools.count(1)

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        if next(steps) == stop_at and os.getpid() == process:
            sys.stderr.write(f"{MARK} at step {stop_at}\n")
            os.kill(process, number)

    def note(path: str) -> None:
        if os.getpid() == process:
            with open(path, "w") as file:
                file.write(str(next(steps) - 1))

    if path is not None:
        atexit.register(note, path)
    is_before = os.environ.get(ENV_STOP_WHEN) == "before"
    register: Any = register_optimizer_step_post_hook
    if is_before:
        register = register_optimizer_step_pre_hook
    register(hook)
