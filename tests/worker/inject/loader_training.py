"""A training loop over a data loader whose steps take what a test says."""

import weakref
from typing import Any

import pytest
from torch.utils.data import DataLoader

from gpujob_api.settings import OptimizeMode, Settings, Toggle
from gpujob_worker.inject.worker_batches import WorkerBatches
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session
from gpujob_worker.tune import data_loader_policy
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.data_loader_policy import LoaderPolicy
from gpujob_worker.tune.registry import tuned
from tests.worker.inject.numbers_dataset import Numbers


class Training:
    """A loop whose steps take what a test says, by a clock of its own."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        mode: OptimizeMode = OptimizeMode.AUTO,
        data_loading: Toggle = Toggle.AUTO,
    ) -> None:
        monkeypatch.setattr(data_loader_policy, "workers_wanted", lambda: 2)
        monkeypatch.setattr(data_loader_policy, "busy_cores", lambda: None)
        self.now = 0.0
        self.session = Session(Environment(Settings(mode=mode, data_loading=data_loading)))
        self.session.meter.clock = lambda: self.now
        self.session.state.baseline_wait_percent = 40.0
        self.policy = LoaderPolicy(self.session)
        self.session.log.verbose = True
        self.loader = self.new_loader()
        self.applied = Applied()
        # Another program is given the machine for a while in every fourth step.
        self.turns = False
        # Of each step: whether its batch could come from worker processes.
        self.worked: list[bool] = []

    def new_loader(self) -> DataLoader[Any]:
        return DataLoader(Numbers(), batch_size=1, shuffle=True)

    def passes(self, number: int, seconds: float, waiting: float) -> list[Any]:
        """Each pass has ten steps."""
        seen: list[Any] = []
        for _ in range(number):
            seen += self._steps(self._begin(self.loader), seconds, waiting)
        return seen

    def passes_of_their_own(
        self, number: int, seconds: float, waiting: float
    ) -> list[weakref.ref[Any]]:
        """As `passes`, each over a loader that is gone when its pass has begun."""
        loaders: list[weakref.ref[Any]] = []
        for _ in range(number):
            loader = self.new_loader()
            loaders.append(weakref.ref(loader))
            iterator = self._begin(loader)
            del loader
            assert sorted(self._steps(iterator, seconds, waiting)) == [*range(10)]
        return loaders

    def _begin(self, loader: Any) -> Any:
        self.policy.before_pass(loader)
        iterator = iter(loader)
        self.policy.begun(loader, iterator)
        return iterator

    def _steps(self, iterator: Any, seconds: float, waiting: float) -> list[Any]:
        seen: list[Any] = []
        while True:
            self.policy.before_batch(iterator)
            batch = next(iterator, None)
            self.policy.waited(iterator, waiting if batch is not None else 0.0)
            if batch is None:
                return seen
            seen.append(self.policy.received(batch).item())
            self.worked.append(isinstance(iterator._next_data, WorkerBatches))
            self.now += seconds
            if self.turns and self.session.meter.steps % 4 == 0:
                self.now += 0.6
            self.session.meter.step_done()

    def tuned(self) -> None:
        self.policy.decide(self.applied)
        self.session.state.tuned = tuned(self.applied)

    @property
    def said(self) -> str:
        return "\n".join(self.session.log.lines)
