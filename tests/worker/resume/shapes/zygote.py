"""Runs scripts in children of a process that has imported torch: each takes a fraction of a second.

Read requests come in at the standard input, one JSON object a line, and go out as answers. The
worker is put into a child as `sitecustomize` does it in a process that `gpujob-run` became, with
one difference: torch is imported already. The child runs its script outside of any loop of this
module, and ends as the interpreter would, but that it does not take torch apart.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

from tests.harness.worker_process import interpret
from tests.worker.resume.shapes import stop_at_step

ROOT = str(Path(__file__).resolve().parents[4])

# `torch._dynamo` would be imported by the first step of an optimizer, which takes 2 s.
IMPORTED = (
    "torch",
    "torch._dynamo",
    "torch.utils.data",
    "numpy",
    "tqdm",
    "gpujob_worker.hooks",
    "gpujob_worker.process",
    "gpujob_worker.resume.watch",
)


def serve() -> dict[str, Any] | None:
    """Answers requests; returns one in the child that is to run it, and None at the end."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = cast("dict[str, Any]", json.loads(line))
        begin = time.monotonic()
        pid = os.fork()
        if pid == 0:
            return request
        code = _wait(pid, request["seconds"])
        out.write(json.dumps({"code": code, "seconds": time.monotonic() - begin}) + "\n")
        out.flush()
    return None


def _wait(pid: int, seconds: float) -> int | None:
    """The exit code, negative for a signal; None for a child that was ended after its time."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ended = poll.poll(seconds * 1000)
        if not ended:
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status) if ended else None
    finally:
        os.close(descriptor)


def _become(request: dict[str, Any]) -> None:
    """As a process of its own: streams, folder, environment, and none of our modules."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for descriptor, path in ((1, request["out"]), (2, request["error"])):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:] = [path for path in sys.path if path not in (ROOT, "")]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_script(request: dict[str, Any]) -> int:
    """The one place at which the worker comes into a child: before the script's file is run."""
    script = request["script"]
    if request["options"] is None:
        stop_at_step.install()
        return interpret([script])
    from gpujob_worker import activation
    from gpujob_worker.__main__ import main

    def become(program: str, words: list[str], environment: dict[str, str]) -> None:
        del program
        os.environ.update(environment)
        sys.argv = words[1:]

    os.execve = become  # type: ignore[assignment]
    main([*request["options"], "--", "python", script])
    activation.start()
    # Its hook is called after the worker's own, as that of a real process, whose `sitecustomize`
    # follows the worker's.
    stop_at_step.install()
    return interpret(sys.argv)


def end(code: int) -> None:
    """What the interpreter does at its end and a script may notice: files that are open are written
    to. To take all modules apart would cost as much as the rest of a run.
    """
    atexit._run_exitfuncs()  # the interpreter's own call
    main = sys.modules["__main__"]
    vars(main).clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def prepare() -> None:
    """Imports what a script and the worker import, which changes nothing in torch."""
    for name in IMPORTED:
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    gc.freeze()


if __name__ == "__main__":
    prepare()
    given = serve()
    if given is None:
        os._exit(0)  # taken apart, triton writes a page of what it leaks
    _become(given)
    end(run_script(given))
