"""A stop that comes before the first step, wherever the script is then, ends it as a stop does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpujob_api.report import Report, WorkerPhase
from gpujob_api.settings import Settings
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.graceful_stop import Interrupted
from gpujob_worker.run.session import Session
from tests.harness.worker_process import start_worker

pytestmark = [pytest.mark.promise("I13"), pytest.mark.timeout(240)]

# As pods that are launched without a launcher: nobody else comes, and torch waits for them outside
# of Python, where a handler of a signal does not run. Another thread sees when the wait has begun.
WAITS = """
import datetime, socket, sys, threading, time, torch
import torch.distributed as dist
silent = socket.create_server(("127.0.0.1", 0))
port = silent.getsockname()[1] if sys.argv[1] == "other" else 0
def waits():
    dist.TCPStore("127.0.0.1", port, 2, sys.argv[1] == "first", datetime.timedelta(seconds=200))
def says_ready():
    looks = 0
    while looks < 10:
        time.sleep(0.1)
        frame = sys._current_frames()[threading.main_thread().ident]
        looks = looks + 1 if frame.f_code.co_name == "waits" else 0
    print("ready", flush=True)
threading.Thread(target=says_ready, daemon=True).start()
waits()
"""
# A dataset is fetched, say. Under Python 3.14 a signal that comes right before a sleep is seen
# after it, without the worker as well: sleeps are short in what is stopped here.
FETCHES = """
import sys, threading, time
try:
    print("ready", flush=True)
    while True: time.sleep(0.1)
finally:
    print("cleaned up in", *[thread.name for thread in threading.enumerate()], flush=True)
"""
# Another thread imports torch, as where a program imports what it needs in the background.
THREADED = (
    """
import sys, threading
def load():
    import torch
loads = threading.Thread(target=load); loads.start(); loads.join()
"""
    + WAITS
)
HANDLES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
IMPORTS
print("ready", flush=True)
while True: time.sleep(0.1)
"""


@pytest.mark.parametrize("which", ["first", "other"])
def test_while_the_others_are_waited_for(which: str, tmp_path: Path) -> None:
    """Long before the grace period is over: nothing can be saved."""
    script = tmp_path / "train.py"
    script.write_text(WAITS)
    grace = {"GPUJOB_GRACE_SECONDS": "600"}
    run = start_worker(tmp_path, ["python", str(script), which], environment=grace)
    run.wait_until(lambda: (tmp_path / "stdout").exists() and "ready" in run.output)
    run.send(signal.SIGTERM)
    assert run.wait() == 144, run.errors
    assert run.report["phase"] == "draining"
    assert "failure" not in run.report
    said = "asked to before the first step, in a call that handles no signal"
    assert f"gpujob: stop {said}" in run.errors


def stopped(folder: Path, source: str, *arguments: str) -> tuple[int, str, str]:
    """A process of its own that is asked to stop once it says that it is ready."""
    (folder / "train.py").write_text(source)
    own = [sys.executable, "-m", "gpujob_worker", "--explain", "--", "python", "train.py"]
    environment = {**os.environ, "GPUJOB_TERMINATION_FILE": str(folder / "termination")}
    with subprocess.Popen(
        [*own, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=200)
            return process.returncode, output, errors
        finally:
            process.kill()


def test_where_another_thread_imported_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUJOB_GRACE_SECONDS", "600")
    code, _, errors = stopped(tmp_path, THREADED, "first")
    assert code == 144, errors
    assert "asked to before the first step, in a call that handles no signal" in errors


def test_before_a_training_library_is_imported(tmp_path: Path) -> None:
    """As process 1 of a container: without a handler the kernel would drop the signal. Nothing can
    be saved: no thread is started, which a script that is about to fork would not expect.
    """
    code, output, errors = stopped(tmp_path, FETCHES)
    assert (code, output) == (144, "cleaned up in MainThread\n"), errors
    report = Report.from_text((tmp_path / "termination").read_text())
    assert report.phase is WorkerPhase.DRAINING
    assert report.failure is None


# One that only starts the process that trains, which takes its time to save.
LAUNCHES = """
import subprocess, sys
child = '''
import signal, sys, time
def save(*_):
    time.sleep(1); open("saved", "w").close(); sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True: time.sleep(0.1)
'''
sys.exit(subprocess.run([sys.executable, "-S", "-c", child]).returncode)
"""


def test_a_process_that_starts_the_one_that_trains_waits_for_it(tmp_path: Path) -> None:
    """SIGTERM is passed on, as the kernel tells process 1 of a container alone."""
    code, _, errors = stopped(tmp_path, LAUNCHES)
    assert (tmp_path / "saved").exists(), errors
    assert code == 143, errors


@pytest.mark.parametrize("imports", ["", "import torch"])
def test_a_handler_of_the_script_itself_comes_first(imports: str, tmp_path: Path) -> None:
    code, _, errors = stopped(tmp_path, HANDLES.replace("IMPORTS", imports))
    assert code == 9, errors
    assert ("graceful stop skipped: the script handles SIGTERM itself" in errors) is bool(imports)


def test_a_stop_while_the_process_begins_to_train_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = tmp_path / "termination"
    session = Session(Environment(Settings(), termination_file=message))

    def stopped_meanwhile() -> bool:
        session.stop.request("SIGTERM", 600.0)
        raise Interrupted(saved=False)

    monkeypatch.setattr(session._claim, "take", stopped_meanwhile)
    with pytest.raises(Interrupted):
        session.start()
    session.finish(Interrupted.latest)
    assert Report.from_text(message.read_text()).phase is WorkerPhase.DRAINING


@pytest.mark.parametrize("signaled", [False, True])
def test_who_was_asked_to_end_has_not_failed_to_come_back(signaled: bool, tmp_path: Path) -> None:
    """A resume that is under way is given up after a clean end; the script may just have been told
    to leave."""
    session = Session(Environment(Settings(), termination_file=tmp_path / "termination"))
    ends: list[bool] = []
    session.on_end(ends.append)
    session.stop.signaled = signaled
    session.finish(SystemExit(0))
    assert ends == ([] if signaled else [True])
