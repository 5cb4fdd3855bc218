"""What torchrun's agent does with ranks that are stopped."""

import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpujob_worker.launch import elastic_agent
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session


class SignalException(Exception):  # noqa: N818 - torch's name
    def __init__(self, sigval: signal.Signals) -> None:
        super().__init__(f"got signal: {sigval}")
        self.sigval = sigval


class ChildFailedError(Exception):
    def __init__(self, exit_codes: list[int]) -> None:
        super().__init__(str(exit_codes))
        self.failures = failures(exit_codes)


def failures(exit_codes: list[int]) -> dict[int, Any]:
    return {rank: SimpleNamespace(exitcode=code) for rank, code in enumerate(exit_codes)}


class Launcher:
    """The parts of torch that are changed, of one process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, grace_seconds: float = 100.0) -> None:
        self.session = Session(Environment(grace_seconds=grace_seconds))
        self.waited = waited = list[float]()
        self.does: Callable[[], Any] = lambda: "trained"

        class PContext:
            def __init__(self, exit_codes: list[int]) -> None:
                ended = [SimpleNamespace(proc=SimpleNamespace(returncode=c)) for c in exit_codes]
                self.subprocess_handlers = dict(enumerate(ended))

            def close(self, death_sig: Any = None, timeout: int = 30) -> None:
                waited.append(timeout)

        class LocalElasticAgent:
            _remaining_restarts = 2

            def _monitor_workers(self, result: Any) -> Any:
                return result

        self.context, self.agent = PContext, LocalElasticAgent
        self.launcher = SimpleNamespace(
            LocalElasticAgent=LocalElasticAgent,
            launch_agent=lambda: self.does(),
            SignalException=SignalException,
            ChildFailedError=ChildFailedError,
        )
        monkeypatch.setitem(sys.modules, elastic_agent.MODULE, self.launcher)  # type: ignore[arg-type]
        name = "torch.distributed.elastic.multiprocessing.api"
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(PContext=PContext))  # type: ignore[arg-type]
        elastic_agent.adapt(self.session)

    def ends(self) -> int | str | None:
        """The exit code of the process that launches."""
        with pytest.raises(SystemExit) as raised:
            self.launcher.launch_agent()
        return raised.value.code


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Launcher:
    return Launcher(monkeypatch)


@pytest.mark.promise("I13")
def test_ranks_that_are_asked_to_stop_have_the_grace_period(launcher: Launcher) -> None:
    context = launcher.context([143])
    context.close(signal.SIGTERM)
    context.close(signal.SIGTERM, 300)
    # One failed: its siblings hang, and get no more than torch gives them.
    context.close()
    context.close(signal.SIGINT)
    assert launcher.waited == [100, 300, 30, 30]


@pytest.mark.parametrize(
    ("exit_codes", "ends"),
    [
        ([143, 143], 143),
        ([143, 144], 144),
        ([143, -9], 144),
        ([-15, -15], 144),
        ([], 144),
        ([0, 143], 144),
        ([0, 0], 0),
    ],
)
def test_a_launcher_that_is_stopped_ends_as_its_ranks(
    launcher: Launcher, exit_codes: list[int], ends: int
) -> None:
    def stopped() -> None:
        launcher.context(exit_codes).close(signal.SIGTERM)
        raise SignalException(signal.SIGTERM)

    launcher.does = stopped
    assert launcher.ends() == ends


@pytest.mark.parametrize(
    ("exit_codes", "ends"), [([143], 143), ([143, -15], 144), ([144, 143], 144)]
)
def test_ranks_that_left_as_asked_are_no_failure_of_their_launcher(
    launcher: Launcher, exit_codes: list[int], ends: int
) -> None:
    def left() -> None:
        raise ChildFailedError(exit_codes)

    launcher.does = left
    assert launcher.ends() == ends


@pytest.mark.parametrize("exit_codes", [[1], [1, 143], [-15, -15], [-9, 144]])
def test_a_rank_that_failed_is_a_failure_of_its_launcher(
    launcher: Launcher, exit_codes: list[int]
) -> None:
    def failed() -> None:
        raise ChildFailedError(exit_codes)

    launcher.does = failed
    with pytest.raises(ChildFailedError):
        launcher.launcher.launch_agent()


def test_another_signal_is_the_launchers_own(launcher: Launcher) -> None:
    def interrupted() -> None:
        raise SignalException(signal.SIGINT)

    launcher.does = interrupted
    with pytest.raises(SignalException):
        launcher.launcher.launch_agent()


@pytest.mark.parametrize(
    ("exit_codes", "restarts"), [([143, -15], 0), ([144], 0), ([1, 144], 2), ([-15], 2), ([], 2)]
)
def test_only_ranks_that_failed_are_started_anew(
    launcher: Launcher, exit_codes: list[int], restarts: int
) -> None:
    agent = launcher.agent()
    result = SimpleNamespace(failures=failures(exit_codes))
    assert agent._monitor_workers(result) is result
    assert agent._remaining_restarts == restarts


def test_what_ends_well_is_not_touched(launcher: Launcher) -> None:
    assert launcher.launcher.launch_agent() == "trained"
