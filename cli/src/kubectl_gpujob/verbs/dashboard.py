"""kubectl gpujob dashboard: starts the page of GPUs, queues, jobs and services on this machine."""

import argparse
import importlib.util
import os
import sys

from kubectl_gpujob.errors import UserError
from kubectl_gpujob.grammar import World, add_target

_PROGRAM = "gpujob_dashboard"
_NEEDS = ("aiohttp", "jinja2", "numpy")
HELP = """
The page is read-only, listens on this machine alone and shows what your kubeconfig may read. Its
address works once. For a page that several people use, see dashboard.enabled of the chart.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = HELP
    parser.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    parser.add_argument("--no-open", action="store_true", help="do not open the browser")
    add_target(parser)


def run(options: argparse.Namespace, world: World) -> int:
    """Replaces this process by the dashboard's, which does not return. Raises `UserError`."""
    missing = [name for name in (_PROGRAM, *_NEEDS) if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"the dashboard needs {', '.join(missing)}, which this plugin does not bring: "
            "python3 -m pip install 'gpujob[dashboard]'"
        )
    command = [sys.executable, "-m", _PROGRAM, *words(options)]
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - the dashboard takes the terminal over


def words(options: argparse.Namespace) -> list[str]:
    """Returns the options as the dashboard's own program takes them."""
    found = [f"--port={options.port}"]
    if options.no_open:
        found.append("--no-open")
    for name in ("namespace", "context", "kubeconfig"):
        value = getattr(options, name)
        if value is not None:
            found.append(f"--{name}={value}")
    return found
