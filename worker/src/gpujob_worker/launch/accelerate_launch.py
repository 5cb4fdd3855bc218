"""`accelerate launch` of one process: the launcher becomes the script, instead of waiting for it.

By itself it starts the script as a child, and dies of SIGTERM without a word to it. Such a script
would not be saved either: what stands first in a container is what a stop reaches.
"""

import functools
import os
import sys
from typing import Any

MODULE = "accelerate.commands.launch"


def adapt() -> None:
    """In the container's first process, once `MODULE` was imported."""
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
