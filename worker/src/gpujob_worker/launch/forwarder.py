"""Keeps `gpujob-run` as the first process of a run whose command is not Python: a shell, `make`,
`uv run`.

A shell does not forward a stop. As a container's process 1 it ignores SIGTERM, and otherwise it
dies and leaves its children behind. So this process stays, and adopts processes that lose their
parent.

On a stop it signals its children, and those of shells. A process that dies of that leaves its
children to this process, which signals them next. A process that handles SIGTERM is left to save
and to end its own children. So is a shell with a trap, for a moment.

A process at the end of a pipe (`python train.py | tee log`) is signalled last. Without it the
writer could not write, and it ends by itself once it has read the rest. If it handles SIGTERM, it
may have to save, and waits less.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from gpujob_api.settings import EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED
from gpujob_worker.launch.first_process import ENV_FIRST_PROCESS, ENV_FORWARDER
from gpujob_worker.run.process_tree import (
    children,
    handles,
    input_of,
    is_shell,
    outputs_of,
    start_of,
)

EXIT_NOT_EXECUTABLE = 126
# A shell reports a signal by this number plus the signal's.
EXIT_BY_SIGNAL = 128
# Margin before the end of the grace period, at which everything is killed from outside.
KILL_MARGIN_SECONDS = 0.25
# Seconds that a process at the end of a pipe may take to drain it.
READING_SECONDS = 1.0
# Seconds that a shell's own trap may take to signal the shell's children and to clean up.
TRAP_SECONDS = 1.0
# Part of the grace period. A process that has to save waits no longer than this for others.
WAITING_SHARE = 0.25
_LOOK_SECONDS, _LOOK_SECONDS_STOPPING = 5.0, 0.05
_PASSED_ON = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_HEARD = {signal.SIGCHLD, signal.SIGTERM, *_PASSED_ON}
# Python ignores these signals, and a program that it becomes would too.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopts_orphans() -> bool:
    """Makes this process the parent of all processes in a run that lose theirs.

    Returns False if that is impossible, as on systems other than Linux.
    """
    if not sys.platform.startswith("linux"):
        return False
    return os.getpid() == 1 or _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> bool:
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # not every image's Python has it

        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0
    return False


def run_as_child(
    program: Sequence[str], environment: Mapping[str, str], grace_seconds: float
) -> NoReturn:
    """Runs the program and ends as it does.

    A stop may change the exit code. It then depends on the program and the processes that this
    process adopted. It is 144 if one of them ended with 144, else 143 if one ended with 143. Else
    it is 144 if the program did not end or a signal ended it, and otherwise the program's own code.
    """
    given = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    forwarder = os.getpid()
    command = os.fork()
    if command == 0:
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, given)
        if forwarder != 1:
            # In a container, the kernel kills all processes together with process 1.
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        pids = {ENV_FIRST_PROCESS: str(os.getpid()), ENV_FORWARDER: str(forwarder)}
        _become(program, {**environment, **pids})
    code = Forwarder(command, grace_seconds).wait()
    if code < 0 and os.getpid() != 1:
        _die_of(-code)
    # The interpreter's exit handlers would report this process, which is no part of the run.
    os._exit(code if code >= 0 else EXIT_BY_SIGNAL - code)


def _die_of(number: int) -> None:
    """Dies of the command's signal, because a shell outside checks whether a key ended it."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not every image's Python has it

        # The command has left its own core dump. Another one of this process would not help.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError, ValueError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)


def _become(program: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    try:
        os.execve(program[0], list(program), environment)  # noqa: S606 - by design
    except OSError as error:
        os.write(2, f"gpujob-run: {program[0]}: {error.strerror}\n".encode())
        os._exit(EXIT_NOT_EXECUTABLE)


class Forwarder:
    """Waits for the command, and after a stop for all other processes too."""

    def __init__(self, command: int, grace_seconds: float) -> None:
        self._command = command
        self._grace_seconds = grace_seconds
        self._code: int | None = None
        self._deadline: float | None = None
        # Exit codes of processes that ended after the stop, negative for a signal.
        self._codes: list[int] = []
        self._asked: set[tuple[int, str]] = set()
        # When each child of a shell with a trap was first seen after the stop.
        self._seen: dict[tuple[int, str], float] = {}
        self._is_alone = False
        # The last time at which a process existed that reads no other one's output.
        self._others_until = self._stopped_at = 0.0

    def wait(self) -> int:
        """Waits until the end. Returns the exit code, negative if a signal ended the command."""
        while not self._is_over:
            stopping = self._deadline is not None
            heard = signal.sigtimedwait(
                _HEARD, _LOOK_SECONDS_STOPPING if stopping else _LOOK_SECONDS
            )
            if heard is not None:
                self._hear(heard)
            self._reap()
            if self._deadline is not None:
                # If a process cannot be read, the others still have to be signalled.
                with contextlib.suppress(Exception):
                    self._ask_to_stop()
        with contextlib.suppress(Exception):
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
                self._others_until = self._stopped_at = time.monotonic()
                self._deadline = self._stopped_at + self._grace_seconds
        elif heard.si_signo in _PASSED_ON and heard.si_code <= 0 and self._code is None:
            # The terminal itself signals the command when a key is pressed.
            with contextlib.suppress(OSError):
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
        """Signals each process once. Others follow with each look, as their parents die."""
        reached = dict(_reached(os.getpid()))
        if not reached and self._code is None:
            reached = {self._command: False}  # a system without a list of children
        readers = _readers(reached)
        if any(not is_shell(pid) for pid in reached.keys() - readers):
            self._others_until = time.monotonic()
        for pid, is_below_trap in reached.items():
            known = pid, start_of(pid)
            waits = is_below_trap and self._is_left_to_trap(known)
            waits = waits or (pid in readers and self._is_still_read(pid))
            if known not in self._asked and not waits:
                self._asked.add(known)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)

    def _is_left_to_trap(self, known: tuple[int, str]) -> bool:
        now = time.monotonic()
        return now - self._seen.setdefault(known, now) <= self._bounded(TRAP_SECONDS)

    def _is_still_read(self, pid: int) -> bool:
        """Returns whether its input may still be written, or read to its end."""
        now = time.monotonic()
        if handles(pid, signal.SIGTERM) and now - self._stopped_at > self._bounded(math.inf):
            return False
        return now - self._others_until <= self._bounded(READING_SECONDS)

    def _bounded(self, seconds: float) -> float:
        return min(seconds, self._grace_seconds * WAITING_SHARE)

    def _kill_rest(self) -> None:
        """Kills the processes that are left when the time is over."""
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
        return self._code


def _reached(pid: int, is_below_trap: bool = False) -> Iterator[tuple[int, bool]]:
    """Yields children, and those of shells, with whether a shell with a trap is above them.

    Such a shell waits for its child before it runs the trap.
    """
    for child in children(pid):
        yield child, is_below_trap
        if is_shell(child):
            yield from _reached(child, is_below_trap or handles(child, signal.SIGTERM))


def _readers(pids: Iterable[int]) -> set[int]:
    """Returns those that read from a pipe which another process of this tree has open for
    writing.
    """
    writers: dict[str, set[int]] = {}
    for pid in _all(os.getpid()):
        for pipe in outputs_of(pid):
            writers.setdefault(pipe, set()).add(pid)
    return {pid for pid in pids if writers.get(input_of(pid), set()) - {pid}}


def _all(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from _all(child)
