"""The command line of kubectl gpujob.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the job failed, 4 timed out.
"""

import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from gpujob_api.visible import visible
from kubectl_gpujob.cluster import connect
from kubectl_gpujob.errors import EXIT_DONE, EXIT_FAILED, UserError
from kubectl_gpujob.grammar import World, run
from kubectl_gpujob.screen import standard_screen

EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    world = World(standard_screen(), connect, lambda: datetime.now(UTC), time.sleep, _ask)
    try:
        return run(sys.argv[1:] if arguments is None else arguments, world)
    except UserError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        # The plugin of one file leaves NumPy out, which only the decisions need.
        if error.name != "numpy":
            raise
        print("error: this command needs NumPy: python3 -m pip install numpy", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has enough. Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE


def _ask(question: str) -> str:
    if not sys.stdin.isatty():
        return ""
    try:
        return input(question)
    except EOFError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
