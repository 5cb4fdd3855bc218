"""Makes `accelerate launch` of one process become the script instead of waiting for it.

Accelerate starts the script as a child and dies of SIGTERM without passing it on. Such a script
could not save either, because a stop only reaches a container's first process.
"""

import functools
import os
import sys
from typing import Any

MODULE = "accelerate.commands.launch"


def adapt() -> None:
    """Patches the launcher in the container's first process, once `MODULE` was imported."""
    module: Any = sys.modules[MODULE]
    plain = module.simple_launcher

    @functools.wraps(plain)
    def simple_launcher(args: Any) -> None:
        if getattr(args, "mpirun_hostfile", None) is not None:
            plain(args)
            return
        command, environment = module.prepare_simple_launcher_cmd_env(args)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execvpe(command[0], command, environment)  # noqa: S606 - what it would have started

    module.simple_launcher = simple_launcher
