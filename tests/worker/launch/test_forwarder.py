"""`gpujob-run` before a shell: signals, exit codes, orphans and the end of the grace period."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpujob_api.settings import EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED
from gpujob_worker.launch import forwarder
from gpujob_worker.launch.command import hooked, resolved, runs_python
from gpujob_worker.launch.forwarder import EXIT_NOT_EXECUTABLE
from gpujob_worker.run.process_tree import children, start_of
from tests.harness.forwarded import (
    IGNORES,
    SAVES,
    SECONDS_MAX,
    ends,
    environment,
    own,
    ready,
    stopped,
)
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(200)]
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
# Has a child as a loader has: it dies of SIGTERM, and the parent needs it to save.
LOADS = """
import os, signal, subprocess, sys, time
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
child = subprocess.Popen([sys.executable, "-S", "-c",
    "import time; print('ready', flush=True)\\nwhile True: time.sleep(0.05)"])
while not stopped: time.sleep(0.05)
time.sleep(0.1)
lives = child.poll() is None
child.kill(); child.wait()
sys.exit(143 if lives else 1)
"""


@pytest.mark.parametrize(
    ("text", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", -9), ("kill -INT $$", -2)]
)
def test_it_ends_as_the_command_does(text: str, code: int) -> None:
    """Of the same signal too: by that a shell outside knows a key that is to end its loop."""
    assert ends("sh", "-c", text).returncode == code


def test_output_and_pipes_are_those_of_the_command() -> None:
    # Where a program ignores SIGPIPE, as Python does, `yes` says that it could not write.
    done = ends("sh", "-c", "yes | head -n 1; echo error >&2")
    assert (done.stdout, done.stderr) == ("y\n", "error\n")


def test_what_cannot_be_executed(tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    done = ends(str(program))
    assert done.returncode == EXIT_NOT_EXECUTABLE
    assert done.stderr == f"gpujob-run: {program}: Exec format error\n"


@pytest.mark.parametrize("code", [EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED])
def test_a_stop_reaches_what_the_shell_runs_and_the_shell_goes_no_further(
    code: int, tmp_path: Path
) -> None:
    with ready(tmp_path, f"python -S child.py {code}; echo after", SAVES) as process:
        assert stopped(process) == (code, "saved\n")


def test_one_process_that_saved_nothing_decides_about_the_exit_code(tmp_path: Path) -> None:
    text = "python -S child.py 144 & python -S child.py 143; echo after"
    with ready(tmp_path, text, SAVES) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert stopped(process) == (EXIT_INTERRUPTED_UNSAVED, "saved\nsaved\n")


@pytest.mark.parametrize(
    "text",
    [
        "(python -S child.py 143; echo inner); echo after",
        "sh -c 'python -S child.py 143; echo inner'; echo after",
        "python -S child.py 143 & wait; echo after",
    ],
)
def test_whatever_shells_are_between(text: str, tmp_path: Path) -> None:
    with ready(tmp_path, text, SAVES) as process:
        code, output = stopped(process)
    assert code == EXIT_INTERRUPTED_SAVED
    assert "inner" not in output
    assert "after" not in output


def test_what_reads_its_output_lasts_as_long(tmp_path: Path) -> None:
    text = "python -S child.py 143 2>&1 | tee log; echo after"
    with ready(tmp_path, text, SAVES) as process:
        assert stopped(process) == (EXIT_INTERRUPTED_SAVED, "saved\n")
    assert (tmp_path / "log").read_text() == "ready\nsaved\n"


def test_what_reads_the_output_of_what_has_ended_is_asked_too(tmp_path: Path) -> None:
    text = "echo 143 | while read code; do python -S child.py $code; echo inner; done; echo after"
    with ready(tmp_path, text, SAVES) as process:
        assert stopped(process) == (EXIT_INTERRUPTED_SAVED, "saved\n")


def test_an_input_of_the_run_itself_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(SAVES)
    command = own("sh", "-c", "python -S child.py 143; echo after")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert stopped(process) == (EXIT_INTERRUPTED_SAVED, "saved\n")


def test_what_a_shell_with_a_trap_runs_is_asked_too(tmp_path: Path) -> None:
    """Such a shell runs its trap once its child has ended, and decides about its own end."""
    text = "trap 'echo trapped; exit 5' TERM; python -S child.py 143"
    with ready(tmp_path, text, SAVES) as process:
        assert stopped(process) == (5, "saved\ntrapped\n")


def test_children_of_what_handles_a_stop_are_left_to_it(tmp_path: Path) -> None:
    with ready(tmp_path, "python -S child.py; echo after", LOADS) as process:
        assert stopped(process) == (EXIT_INTERRUPTED_SAVED, "")


def test_what_dies_of_a_stop_has_saved_nothing(tmp_path: Path) -> None:
    source = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)"
    with ready(tmp_path, "python -S child.py; echo after", source) as process:
        assert stopped(process) == (EXIT_INTERRUPTED_UNSAVED, "")


def test_children_of_what_dies_of_a_stop_are_asked_next(tmp_path: Path) -> None:
    """As of a launcher that starts its script and waits for it."""
    (tmp_path / "launcher.py").write_text(
        "import subprocess, sys; subprocess.run([sys.executable, '-S', 'child.py', '143'])"
    )
    with ready(tmp_path, "python -S launcher.py; echo after", SAVES) as process:
        assert stopped(process) == (EXIT_INTERRUPTED_SAVED, "saved\n")


def test_what_does_not_leave_is_killed_at_the_end_of_the_grace_period(tmp_path: Path) -> None:
    with ready(tmp_path, "python -S child.py", IGNORES, grace_seconds=1.0) as process:
        pids = {pid for shell in children(process.pid) for pid in children(shell)}
        assert pids
        assert stopped(process) == (EXIT_INTERRUPTED_UNSAVED, "")
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_orphans_leave_no_zombies(tmp_path: Path) -> None:
    """Their parent has ended before them."""
    text = "(sleep 0.1 & sleep 0.1 &); python -S child.py 0"
    with ready(tmp_path, text, SAVES) as process:
        # Adopted, ended and waited for: what is left is the shell that runs the script.
        wait_until(lambda: len(children(process.pid)) == 1)
        assert stopped(process)[0] == EXIT_INTERRUPTED_UNSAVED


def test_another_signal_is_passed_on_to_the_command(tmp_path: Path) -> None:
    text = "trap 'echo heard; exit 3' USR1; echo ready; while :; do sleep 0.1; done"
    with ready(tmp_path, text, "") as process:
        assert stopped(process, signal.SIGUSR1) == (3, "heard\n")


def test_a_command_that_may_not_be_signalled_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has become another user's."""

    def kill(pid: int, number: int) -> None:
        raise PermissionError(pid, number)

    monkeypatch.setattr(os, "kill", kill)
    one = forwarder.Forwarder(os.getpid(), 60.0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        heard = signal.sigtimedwait({signal.SIGUSR1}, 10)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    assert heard is not None
    one._hear(heard)


def test_the_command_ends_with_a_forwarder_that_is_killed(tmp_path: Path) -> None:
    with ready(tmp_path, "echo ready; while :; do sleep 0.1; done", "") as process:
        (command,) = children(process.pid)
        process.kill()
        wait_until(lambda: not start_of(command))


def test_a_command_that_is_python_is_become(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text("import os; print(os.getpid())")
    # The kernel takes no interpreter with a space in its path.
    (tmp_path / "python3").symlink_to(sys.executable)
    console = tmp_path / "console"
    console.write_text(f"#!{tmp_path}/python3\nimport os\nprint(os.getpid())\n")
    console.chmod(0o755)
    for command in (("python", "child.py"), (str(console),)):
        with subprocess.Popen(
            own(*command), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.communicate(timeout=SECONDS_MAX)[0] == f"{process.pid}\n"


def test_as_process_1_of_a_container_it_hears_a_stop(tmp_path: Path) -> None:
    """Where a shell would hear none. The start-up hook stands on the path there too."""
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], check=False).returncode:
        pytest.skip("no right to make a PID namespace")
    (tmp_path / "child.py").write_text(SAVES)
    command = own("sh", "-c", "python child.py 143 | tee log; echo after")
    with subprocess.Popen(
        [*UNSHARE, *command],
        cwd=tmp_path,
        env=hooked(environment()),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (first,) = children(process.pid)
        os.kill(first, signal.SIGTERM)
        assert process.communicate(timeout=SECONDS_MAX)[0] == "saved\n"
        assert process.returncode == EXIT_INTERRUPTED_SAVED


def test_as_process_1_it_tells_of_a_signal_by_its_code() -> None:
    if not shutil.which("unshare") or subprocess.run([*UNSHARE, "true"], check=False).returncode:
        pytest.skip("no right to make a PID namespace")
    command = [*UNSHARE, *own("sh", "-c", "kill -KILL $$")]
    done = subprocess.run(command, env=environment(), timeout=SECONDS_MAX, check=False)
    assert done.returncode == 128 + signal.SIGKILL


def test_without_a_list_of_children_the_command_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def no_children(_: int) -> set[int]:
        return set()

    def kill(pid: int, number: int) -> None:
        asked.append((pid, number))

    monkeypatch.setattr(forwarder, "children", no_children)
    monkeypatch.setattr(os, "kill", kill)
    one = forwarder.Forwarder(2**22 + 1, 60.0)
    one._ask_to_stop()
    one._ask_to_stop()
    assert asked == [(2**22 + 1, signal.SIGTERM)]


def test_which_commands_are_python(tmp_path: Path) -> None:
    program = tmp_path / "program"
    known = {
        b"#!/usr/bin/env python3\n": True,
        b"#!/opt/x/bin/python\n": True,
        b"#!/bin/sh\n'''exec' /a/long/way/python \"$0\" \"$@\"\n' '''\n": True,
        b"#!/bin/sh\nexec python train.py\n": False,
        b"\x7fELF": False,
    }
    for text, expected in known.items():
        program.write_bytes(text)
        assert runs_python([str(program)]) is expected, text
    assert runs_python(["/usr/bin/python3.11", "train.py"])
    shell = resolved(["sh", "-c", "python train.py"])
    assert shell is not None
    assert not runs_python(shell)
    assert not runs_python([str(tmp_path / "gone")])
