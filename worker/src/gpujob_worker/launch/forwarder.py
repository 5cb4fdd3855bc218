"""`gpujob-run` as the first process of a run whose command is no Python: a shell, `make`, `uv run`.

A shell passes no stop on: as a container's process 1 it hears none, and any other dies and leaves
what it started behind. So this process stays, and adopts what loses its parent. Asked to stop, it
asks its children, and those of shells; whoever dies of it leaves its children to this process,
which asks them next. What handles SIGTERM is left to save and to end its own children. What reads
another one's output (`python train.py | tee log`) is asked last: without it the other could not
write, and by itself it ends after the other, once it has read the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from gpujob_api.settings import EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED
from gpujob_worker.launch.first_process import ENV_FIRST_PROCESS, ENV_FORWARDER
from gpujob_worker.run.process_tree import children, input_of, is_shell, start_of

EXIT_NOT_EXECUTABLE = 126
# A shell's way to tell of a signal: this and its number.
EXIT_BY_SIGNAL = 128
# Before the end of the grace period, at which everything is killed from outside.
KILL_MARGIN_SECONDS = 0.25
# For so long what reads another one's output may take to read the rest of it.
READING_SECONDS = 1.0
_LOOK_SECONDS, _LOOK_SECONDS_STOPPING = 5.0, 0.05
_PASSED_ON = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_HEARD = {signal.SIGCHLD, signal.SIGTERM, *_PASSED_ON}
# Python ignores them, and a program that it becomes would too.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_PR_SET_CHILD_SUBREAPER = 36


def adopts_orphans() -> bool:
    """Makes this process the parent of all in a run that lose theirs; false where that cannot be
    had: not on Linux.
    """
    if not sys.platform.startswith("linux"):
        return False
    if os.getpid() == 1:
        return True
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # not every image's Python has it

        return ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    return False


def run_as_child(
    program: Sequence[str], environment: Mapping[str, str], grace_seconds: float
) -> NoReturn:
    """Ends as the program does; after a stop with 143 where a process left so, else with 144."""
    given = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    forwarder = os.getpid()
    command = os.fork()
    if command == 0:
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, given)
        pids = {ENV_FIRST_PROCESS: str(os.getpid()), ENV_FORWARDER: str(forwarder)}
        _become(program, {**environment, **pids})
    code = Forwarder(command, grace_seconds).wait()
    # The interpreter's end would report of this process, which is no part of the run.
    os._exit(code)


def _become(program: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    try:
        os.execve(program[0], list(program), environment)  # noqa: S606 - by design
    except OSError as error:
        os.write(2, f"gpujob-run: {program[0]}: {error.strerror}\n".encode())
        os._exit(EXIT_NOT_EXECUTABLE)


class Forwarder:
    """Waits for the command, and for all else once it was asked to stop."""

    def __init__(self, command: int, grace_seconds: float) -> None:
        self._command = command
        self._grace_seconds = grace_seconds
        self._code: int | None = None
        self._deadline: float | None = None
        # Of what ended after the stop; negative where a signal ended it.
        self._codes: list[int] = []
        self._asked: set[tuple[int, str]] = set()
        self._is_alone = False
        # When something was there last that reads no other's output.
        self._others_until = 0.0
        # No pipe, or that of this process, which is no part of the run.
        self._inputs = ("", input_of(os.getpid()))

    def wait(self) -> int:
        """Until the end; returns the exit code."""
        while not self._is_over:
            stopping = self._deadline is not None
            heard = signal.sigtimedwait(
                _HEARD, _LOOK_SECONDS_STOPPING if stopping else _LOOK_SECONDS
            )
            if heard is not None:
                self._hear(heard)
            self._reap()
            if self._deadline is not None:
                self._ask_to_stop()
        self._kill_rest()
        return self._exit_code()

    @property
    def _is_over(self) -> bool:
        if self._deadline is None:
            return self._code is not None
        return self._is_alone or time.monotonic() > self._deadline - KILL_MARGIN_SECONDS

    def _hear(self, heard: signal.struct_siginfo) -> None:
        if heard.si_signo == signal.SIGTERM:
            if self._deadline is None:
                self._others_until = time.monotonic()
                self._deadline = self._others_until + self._grace_seconds
        elif heard.si_signo in _PASSED_ON and heard.si_code <= 0 and self._code is None:
            # Of a key the terminal tells the command itself.
            os.kill(self._command, heard.si_signo)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_alone = True
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if pid == self._command:
                self._code = code
            if self._deadline is not None:
                self._codes.append(code)

    def _ask_to_stop(self) -> None:
        """Each process once; others come with each look, as their parents die."""
        reached = list(_reached(os.getpid()))
        if not reached and self._code is None:
            reached = [self._command]  # a system without a list of children
        last = [pid for pid in reached if input_of(pid) not in self._inputs]
        others = [pid for pid in reached if pid not in last]
        if any(not is_shell(pid) for pid in others):
            self._others_until = time.monotonic()
        waited = time.monotonic() - self._others_until > READING_SECONDS
        for pid in reached if waited else others:
            known = pid, start_of(pid)
            if known not in self._asked:
                self._asked.add(known)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)

    def _kill_rest(self) -> None:
        """What is left when the time is over."""
        if self._deadline is not None:
            for pid in list(_all(os.getpid())):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    def _exit_code(self) -> int:
        if self._deadline is not None:
            for interrupted in (EXIT_INTERRUPTED_UNSAVED, EXIT_INTERRUPTED_SAVED):
                if interrupted in self._codes:
                    return interrupted
            if self._code is None or self._code < 0:
                return EXIT_INTERRUPTED_UNSAVED
        assert self._code is not None
        return self._code if self._code >= 0 else EXIT_BY_SIGNAL - self._code


def _reached(pid: int) -> Iterator[int]:
    """Children, and those of shells: a shell with a trap waits for its child before it runs it."""
    for child in children(pid):
        yield child
        if is_shell(child):
            yield from _reached(child)


def _all(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from _all(child)
