"""Launched commands: their core, their signals, their parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from gpujob_local.kubelet.image_environment import image_environment
from gpujob_local.processes import launch
from gpujob_local.processes.processes import launch_command
from gpujob_worker.launch.first_process import ENV_FIRST_PROCESS


def test_launched_commands_keep_to_their_core_and_start_with_default_signals() -> None:
    core = min(os.sched_getaffinity(0))
    script = (
        "import os, signal; print(sorted(os.sched_getaffinity(0)));"
        "print(open('/proc/self/status').read().split('SigIgn:')[1].split()[0])"
    )
    command = launch_command([sys.executable, "-I", "-c", script], [core])
    # As a shell leaves them to what it starts in the background, and nohup.
    left = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in left}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    affinity, ignored = done.stdout.splitlines()
    assert affinity == f"[{core}]"
    # This Python ignores SIGPIPE and SIGXFSZ itself. Signals 32 and 33 belong to the C library,
    # which lets no program set them: whoever started the tests may have left them ignored.
    of_nobody = {signal.SIGPIPE, signal.SIGXFSZ, 32, 33}
    assert {number for number in range(1, 65) if int(ignored, 16) >> number - 1 & 1} <= of_nobody


def test_a_container_s_process_has_its_own_number_as_the_first_one() -> None:
    # A process node has no process 1 of each container, by which the worker knows it elsewhere.
    script = "import os; print(os.environ['GPUJOB_FIRST_PROCESS'] == str(os.getpid()))"
    done = subprocess.run(
        launch_command([sys.executable, "-c", script]),
        env={**os.environ, **image_environment(), "GPUJOB_INJECT": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"
    assert launch.FIRST_PROCESS == ENV_FIRST_PROCESS


def test_a_command_is_not_run_when_its_parent_is_gone_or_it_cannot_be_executed(
    tmp_path: Path,
) -> None:
    plain = [sys.executable, "-I", "-S", launch.__file__]
    touched = tmp_path / "touched"
    orphan = subprocess.run([*plain, "1", "-", "touch", str(touched)], check=False)
    assert (orphan.returncode, touched.exists()) == (launch.EXIT_PARENT_GONE, False)
    me = str(os.getpid())
    missing = subprocess.run([*plain, me, "-", "/no/such"], capture_output=True, check=False)
    assert missing.returncode == launch.EXIT_START_ERROR
    assert b"cannot execute /no/such" in missing.stderr
