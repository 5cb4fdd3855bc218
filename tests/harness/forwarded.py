"""Runs `gpujob-run -- sh -c TEXT`, stops it, and says how it ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

SECONDS_MAX = 100
# Leaves with the code that it is given, some time after SIGTERM.
SAVES = """
import os, signal, sys, time
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
print("ready", flush=True)
while not stopped: time.sleep(0.05)
time.sleep(0.1)
os.write(1, b"saved\\n")  # print may write the line and its end one by one
sys.exit(int(sys.argv[1]))
"""
IGNORES = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True: time.sleep(0.05)
"""


def environment(grace_seconds: float = 60.0) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("GPUJOB")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    return {**own, "PATH": path, "GPUJOB_GRACE_SECONDS": str(grace_seconds)}


def own(*command: str) -> list[str]:
    return [sys.executable, "-m", "gpujob_worker", "--", *command]


def ends(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        own(*command), env=environment(), capture_output=True, text=True, timeout=SECONDS_MAX
    )


@contextmanager
def ready(folder: Path, text: str, source: str, **more: float) -> Generator[subprocess.Popen[str]]:
    """A shell that runs this text, once a line says "ready"."""
    (folder / "child.py").write_text(source)
    with subprocess.Popen(
        own("sh", "-c", text),
        cwd=folder,
        env=environment(**more),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "ready\n", line
            yield process
        finally:
            process.kill()


def stopped(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str]:
    """The exit code, and what was printed after the signal."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=SECONDS_MAX)
    return process.returncode, output
