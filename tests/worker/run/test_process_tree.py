"""Who started whom, what it runs and what it reads, as Linux tells it."""

import glob
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpujob_worker.run.process_tree import (
    ancestors,
    children,
    handles,
    input_of,
    is_shell,
    outputs_of,
    program_of,
    start_of,
)

pytestmark = pytest.mark.any_torch
GONE = 2**22 + 1


@contextmanager
def shell(text: str) -> Generator[subprocess.Popen[str]]:
    """Once it has printed a line; it ends with its input."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["sh", "-c", text], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_ancestors_begin_with_the_parent_and_end_with_the_first_process() -> None:
    found = list(ancestors())
    assert found[0] == os.getppid()
    assert os.getpid() not in found
    assert found[-1] == 1 or len(found) == 32


def test_a_shell_and_what_it_runs_are_told_apart() -> None:
    with shell("cat - | cat - & echo ready; read line") as process:
        assert process.pid in children(os.getpid())
        assert is_shell(process.pid)
        assert not is_shell(os.getpid())
        assert children(process.pid)


def test_a_script_is_named_by_its_interpreter() -> None:
    assert program_of(os.getpid()) == os.path.basename(os.path.realpath(sys.executable))


def test_a_process_is_known_by_its_id_and_start() -> None:
    with shell("echo ready; read line") as one:
        assert start_of(one.pid) == start_of(one.pid) != ""
        assert int(start_of(one.pid)) >= int(start_of(os.getpid()))


def test_only_a_pipe_is_the_output_of_another() -> None:
    with shell("echo ready; read line") as process:
        assert input_of(process.pid).startswith("pipe:")
    with subprocess.Popen(["sh", "-c", "kill -STOP $$"], stdin=subprocess.DEVNULL) as process:
        try:
            assert input_of(process.pid) == ""
        finally:
            process.kill()


def test_outputs_are_the_pipes_that_are_written() -> None:
    with shell("exec 2>/dev/null; echo ready; read line") as process:
        assert process.stdout is not None
        pipe = os.readlink(f"/proc/self/fd/{process.stdout.fileno()}")
        assert outputs_of(process.pid) == {pipe}


def test_a_handler_is_seen() -> None:
    with shell("trap : TERM; trap '' HUP; echo ready; read line") as process:
        assert handles(process.pid, signal.SIGTERM)
        assert not handles(process.pid, signal.SIGHUP)
        assert not handles(process.pid, signal.SIGUSR1)


def test_a_name_that_is_no_text_changes_nothing(tmp_path: Path) -> None:
    """The system cuts it after 15 bytes: here in the middle of a character."""
    script = tmp_path / (14 * "a" + "\u00e9")
    script.write_text("#!/bin/sh\necho ready; read line\n")
    script.chmod(0o755)
    with shell(f"{script}; :") as process:
        (child,) = children(process.pid)
        assert int(start_of(child)) >= int(start_of(process.pid))


def test_children_are_found_also_by_a_kernel_without_lists_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = glob.glob

    def without_lists(pattern: str) -> list[str]:
        return [] if pattern.endswith("children") else plain(pattern)

    with shell("exec 3<&0; cat <&3 >/dev/null & echo ready; wait") as process:
        listed = {pid: children(pid) for pid in (process.pid, *children(process.pid))}
        assert listed[process.pid]
        monkeypatch.setattr(glob, "glob", without_lists)
        assert {pid: children(pid) for pid in listed} == listed
        assert process.pid in children("self")


def test_of_what_is_gone_nothing_is_known() -> None:
    assert children(GONE) == set()
    assert (start_of(GONE), program_of(GONE), input_of(GONE)) == ("", "", "")
    assert not is_shell(GONE)
    assert outputs_of(GONE) == set()
    assert not handles(GONE, signal.SIGTERM)
