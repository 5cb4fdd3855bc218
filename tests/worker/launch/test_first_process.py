"""Below which process a job's own processes are, and how one of them ends the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.forwarded import SECONDS_MAX, environment, own

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(200)]
ASKS = """
from gpujob_worker.launch.first_process import is_started_by_first_process
print(is_started_by_first_process(), flush=True)
"""
# Starts the same by a shell and without one.
SEARCHES = """
import shlex, subprocess, sys
subprocess.run(shlex.quote(sys.executable) + " asks.py; true", shell=True)
subprocess.run([sys.executable, "asks.py"])
"""
# Adopts what loses its parent, and takes a moment before it ends the shell.
SLOW_FORWARDER = """
import os, shlex, signal, subprocess, sys, time
from gpujob_worker.launch.forwarder import adopts_orphans
assert adopts_orphans()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
shell = subprocess.Popen(["sh", "-c", shlex.quote(sys.executable) + " ends.py; echo after"],
    env={**os.environ, "GPUJOB_FORWARDER": str(os.getpid())}, preexec_fn=lambda:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM}))
signal.sigwait({signal.SIGTERM})
for _ in range(8): time.sleep(0.05)
if sys.argv[1:] == ["ends"]: shell.terminate()
shell.wait()
os.wait()
"""
ENDS = """
import os, time
from gpujob_worker.launch.first_process import end_run
began = time.monotonic()
end_run()
print("waited" if time.monotonic() - began > 0.2 else "not", flush=True)
"""


def output_of(folder: Path, *command: str) -> list[str]:
    for name, text in (("asks", ASKS), ("search", SEARCHES), ("ends", ENDS)):
        (folder / f"{name}.py").write_text(text)
    path = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment(), "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python asks.py", ["True"]),
        ("(sh -c 'python asks.py; true'; true)", ["True"]),
        ("python search.py; true", ["False", "False"]),
    ],
)
def test_shells_between_do_not_count(text: str, expected: list[str], tmp_path: Path) -> None:
    assert output_of(tmp_path, *own("sh", "-c", f"{text}; true")) == expected


def test_below_a_first_process_that_is_python_shells_do_count(tmp_path: Path) -> None:
    """It may start the same command for another purpose each time, as a search does."""
    assert output_of(tmp_path, *own("python", "search.py")) == ["False", "True"]


def test_the_end_of_the_run_waits_for_that_of_the_shell(tmp_path: Path) -> None:
    """A shell that waits for this process would run its next command."""
    (tmp_path / "forwarder.py").write_text(SLOW_FORWARDER)
    assert output_of(tmp_path, sys.executable, "forwarder.py", "ends") == ["waited"]


def test_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    """For a shell with a trap, which waits in turn."""
    (tmp_path / "forwarder.py").write_text(SLOW_FORWARDER.replace("os.wait()", ""))
    assert output_of(tmp_path, sys.executable, "forwarder.py") == ["waited", "after"]


def test_without_gpujob_run_nothing_is_asked(tmp_path: Path) -> None:
    assert output_of(tmp_path, "sh", "-c", "python ends.py; echo after") == ["not", "after"]
