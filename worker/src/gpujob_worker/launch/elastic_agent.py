"""Adapts the agent of torchrun and launchers built on it (`accelerate launch`) to ranks that stop.

By itself the agent gives its ranks 30 s whatever the grace period is. It restarts ranks that left
after a stop, and ends with 1 and a traceback. With this it ends as its ranks did.
"""

import functools
import math
import signal
import sys
from collections.abc import Sequence
from typing import Any

from gpujob_api.settings import EXIT_DONE, EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED
from gpujob_worker.run.graceful_stop import Interrupted, is_launchers_stop
from gpujob_worker.run.session import Session

# Every launcher of ranks imports it. The modules that it joins are imported before.
MODULE = "torch.distributed.launcher.api"
_PROCESSES = "torch.distributed.elastic.multiprocessing.api"
_INTERRUPTED = (EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED)


def adapt(session: Session) -> None:
    """Patches the agent once `MODULE` was imported. A process that only imports it is not
    changed.
    """
    _Ranks(session).install(sys.modules[MODULE], sys.modules[_PROCESSES])


class _Ranks:
    """The ranks that this process started, and how they ended."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._exit_codes: list[int | None] = []

    def install(self, launcher: Any, processes: Any) -> None:
        self._wrap_close(processes.PContext)
        self._wrap_monitor(launcher.LocalElasticAgent)
        self._wrap_launch(launcher)

    def _wrap_close(self, kind: Any) -> None:
        plain = kind.close

        @functools.wraps(plain)
        def close(context: Any, death_sig: Any = None, timeout: int = 30) -> None:
            # Without a signal a rank has failed, so its siblings are not worth a longer wait.
            if death_sig == signal.SIGTERM:
                timeout = max(timeout, math.ceil(self._session.environment.grace_seconds))
            plain(context, death_sig, timeout)
            self._exit_codes = _exit_codes(context)

        kind.close = close

    def _wrap_monitor(self, kind: Any) -> None:
        plain = kind._monitor_workers

        @functools.wraps(plain)
        def _monitor_workers(agent: Any, *arguments: Any, **keywords: Any) -> Any:
            result = plain(agent, *arguments, **keywords)
            failures = getattr(result, "failures", None) or {}
            if _left_as_asked([failure.exitcode for failure in failures.values()]):
                agent._remaining_restarts = 0
            return result

        kind._monitor_workers = _monitor_workers

    def _wrap_launch(self, launcher: Any) -> None:
        plain = launcher.launch_agent

        @functools.wraps(plain)
        def launch_agent(*arguments: Any, **keywords: Any) -> Any:
            try:
                return plain(*arguments, **keywords)
            except launcher.SignalException as error:
                if not is_launchers_stop(error):
                    raise
                raise self._end(self._exit_codes) from None
            except launcher.ChildFailedError as error:
                exit_codes = [failure.exitcode for failure in error.failures.values()]
                if not _left_as_asked(exit_codes):
                    raise
                raise self._end(exit_codes) from None

        launcher.launch_agent = launch_agent

    def _end(self, exit_codes: Sequence[int | None]) -> SystemExit:
        """Returns the exit with which this process ends after its ranks."""
        session = self._session
        if exit_codes and all(code == EXIT_DONE for code in exit_codes):
            # The stop came when they had nothing left to do.
            return SystemExit(EXIT_DONE)
        ends = ", ".join(str(code) for code in exit_codes) or "nothing: none was started"
        session.log.note("stop", f"the launcher's processes ended with {ends}")
        session.stop.request("SIGTERM", session.environment.grace_seconds)
        saved = bool(exit_codes) and all(code == EXIT_INTERRUPTED_SAVED for code in exit_codes)
        return Interrupted(saved=saved)


def _left_as_asked(exit_codes: Sequence[int | None]) -> bool:
    """Returns whether ranks left after a stop, and none failed.

    Once one has left, the agent sends SIGTERM to the others.
    """
    asked = any(code in _INTERRUPTED for code in exit_codes)
    return asked and all(code in (*_INTERRUPTED, -signal.SIGTERM) for code in exit_codes)


def _exit_codes(context: Any) -> list[int | None]:
    """Returns the exit codes of ranks that are programs. Those of functions are not known."""
    handlers: dict[int, Any] = getattr(context, "subprocess_handlers", {})
    return [handler.proc.returncode for handler in handlers.values()]
