"""Tunes processes that train together. The first one measures, and the others adopt its settings.

Each process checks whether the measured settings are safe for its own batch and module. Settings
that all found safe are applied (`consensus`).
"""

from collections.abc import Callable, Sequence

import torch

from gpujob_api.report import Speedup
from gpujob_api.settings import OptimizeMode, Toggle, TunedSettings
from gpujob_worker.control.consensus import (
    COME_SECONDS,
    COMPILE_SECONDS,
    COMPILED,
    MEASURE_SECONDS,
    MEASURED,
    Consensus,
)
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.ddp import (
    group_store,
    inside,
    is_around_wrappers,
    is_redirected,
    is_whole_step,
    is_wrapped,
    process_group,
    sequence_numbers,
    store_within,
    wrapper_in_step,
    wrapper_refusal,
)
from gpujob_worker.inject.fused_optimizer import COPIES_BYTES
from gpujob_worker.inject.guards import (
    is_fabric,
    is_fully_sharded,
    is_on_one_device,
    parallel_wrapper,
)
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.trial import few_rows, short
from gpujob_worker.tune.tuner import FUSED, Tuner

_ROWS = 2


class SharedTuner(Tuner):
    """A tuner that decides together with those of other processes."""

    consensus: Consensus
    # Number of the module that it measures or checks.
    number: int
    # The round of the next decision.
    round: str = MEASURED

    def join(self, consensus: Consensus, number: int) -> None:
        self.consensus = consensus
        self.number = number

    def compiles_later(self) -> None:
        """Called after the decision about the measurement. The next one is about a compilation in
        the middle of the run.
        """
        self.round = COMPILED


class LeadingTuner(SharedTuner):
    """Measures for all processes once all are waiting."""

    _waited: bool | None = None

    def speed(self, root: Root, recorded: RecordedCall) -> None:
        if self._all_here():
            super().speed(root, recorded)

    def compile(self, root: Root, recorded: RecordedCall) -> None:
        if self._all_here():
            super().compile(root, recorded)

    def fused_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        free_bytes: int = COPIES_BYTES,
        item: str = FUSED,
    ) -> bool:
        return self._all_here() and super().fused_optimizer(optimizer, free_bytes, item)

    def gain(
        self,
        root: Root,
        recorded: RecordedCall,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        beside: Sequence[tuple[Root, RecordedCall, Applied]] = (),
    ) -> Speedup | None:
        """Returns None too if this process must not run the module alone."""
        if parallel_wrapper(root.module) is not None:
            return None
        return super().gain(root, recorded, optimizers, beside)

    def _all_here(self) -> bool:
        if self._waited is None:
            self._waited = self.consensus.come()
            # The wait does not count against the tuning budget.
            self._acceptance_rule.start()
            if not self._waited:
                text = f"not all {self.consensus.size} processes came to it"
                self._acceptance_rule.skip("tuning", text)
        return self._waited


class FollowingTuner(SharedTuner):
    """Waits for the first process's settings and adopts those that are safe here."""

    _proposed: TunedSettings | None = None
    _asked = False

    @property
    def proposed(self) -> TunedSettings:
        if not self._asked:
            self._asked = True
            self._acceptance_rule.source = "as the first process measured"
            found = self.consensus.proposal(self.number, self._wait_seconds, self.round)
            self._proposed = found
            if found is None:
                item = "compile" if self.round == COMPILED else "tuning"
                self._acceptance_rule.skip(item, "the first process proposed nothing")
        return self._proposed or TunedSettings()

    def compiles_later(self) -> None:
        super().compiles_later()
        self._asked = False

    @property
    def _wait_seconds(self) -> float:
        compiles = self._settings.compile is Toggle.ON or self.round == COMPILED
        # A setting that is being measured is finished after the tuning budget is spent.
        budget = 2 * self._acceptance_rule.budget_seconds
        return COME_SECONDS + budget + MEASURE_SECONDS + (COMPILE_SECONDS if compiles else 0.0)

    def speed(self, root: Root, recorded: RecordedCall) -> None:
        self.speed_items(root, recorded).adopt(self.proposed)

    def compile(self, root: Root, recorded: RecordedCall) -> None:
        proposed = self.proposed
        if self._proposed is not None and self.round == COMPILED and not proposed.compile:
            self._acceptance_rule.skip("compile", "left out, as the first process measured")
        # Code that was not requested has to be close on each process's batch.
        compares = self.round == COMPILED
        self.compile_items(root, recorded).adopt(proposed, compares=compares)

    def gain(
        self,
        root: Root,
        recorded: RecordedCall,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        beside: Sequence[tuple[Root, RecordedCall, Applied]] = (),
    ) -> None:
        """Returns None, because the first process measures and reports the gain."""

    def fused_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        free_bytes: int = COPIES_BYTES,
        item: str = FUSED,
    ) -> bool:
        del free_bytes
        return self.adopt_fused(optimizer, self.proposed, item)


def root_inside(
    module: torch.nn.Module, model: TrainedModel, before_call: Callable[[Root], None]
) -> Root | None:
    """Returns the root inside DistributedDataParallel if processes can decide together, or None.

    If Lightning's step calls parts inside such a wrapper, the part is the root. If the wrapper's
    call must be left alone, the processes still decide about the optimizer's kernel together. The
    processes of a module that `fully_shard` spreads decide together too.
    """
    within, session = inside(module), model.session
    if session.environment.settings.mode is not OptimizeMode.AUTO:
        return None
    if is_wrapped(module):
        return _part_in_step(module, model, before_call)
    if within is None:
        _decide_if_sharded(module, model)
        return None
    reason = wrapper_refusal(module, session.world_size)
    if reason is not None:
        session.log.skipped("processes", reason)
        _decide_together(model)
        model.first.refuse(reason)
        return None
    root = Root(within, before_call, module)
    _decide_together(model)
    return root


def leads_to_roots(module: torch.nn.Module, model: TrainedModel) -> bool:
    """Returns whether a call of the module only leads to calls of the roots.

    That holds for a module of Lightning Fabric, torch's DataParallel over at most one GPU, another
    wrapper around wrappers, and Lightning's step in a wrapper. Its parts are called as in one
    process.
    """
    session = model.session
    if is_fabric(module) or is_on_one_device(module):
        return True
    if session.world_size == 1 or session.environment.settings.mode is not OptimizeMode.AUTO:
        return False
    within = inside(module)
    if within is None and is_wrapped(module):
        return wrapper_in_step(module) is not None and is_redirected(module)
    if within is None:
        return is_around_wrappers(module)
    return is_whole_step(within) and wrapper_refusal(module, session.world_size) is None


def _part_in_step(
    module: torch.nn.Module, model: TrainedModel, before_call: Callable[[Root], None]
) -> Root | None:
    wrapper = wrapper_in_step(module)
    if wrapper is None:
        return None
    root = Root(module, before_call, wrapper)
    _decide_together(model)
    return root


def _decide_if_sharded(module: torch.nn.Module, model: TrainedModel) -> None:
    """Lets processes decide together about a module that `fully_shard` spreads.

    Each process steps its own part of the parameters. Calls are tried on a copy (`sharded_tuning`),
    and no process runs the module alone.
    """
    if is_fully_sharded(module):
        _decide_together(model)


def _decide_together(model: TrainedModel) -> None:
    session = model.session
    if session.world_size == 1 or model.consensus is not None or process_group() is None:
        return
    known = session.state.known_tuned
    asked = session.environment.settings.compile is Toggle.ON
    consensus = Consensus(
        store_within(group_store(), "decisions"),
        session.rank,
        session.world_size,
        compiles=asked or (known is not None and known.compile),
        cancelled=lambda: session.stop.requested,
    )
    model.decide_together(consensus)


def tuner_for(model: TrainedModel) -> Tuner:
    """Returns the tuner of this process, which decides alone without a consensus."""
    session, consensus = model.session, model.consensus
    kinds = {None: Tuner, True: LeadingTuner, False: FollowingTuner}
    kind = kinds[consensus.leads if consensus is not None else None]
    tuner = kind(
        session.environment.settings,
        session.features,
        model.log,
        session.tuning_budget_seconds,
        model.facts,
        model.source,
    )
    if isinstance(tuner, SharedTuner):
        assert consensus is not None
        tuner.join(consensus, model.first_number)
    return tuner


def refusal_together(root: Root, recorded: RecordedCall) -> str | None:
    """Returns why a module other than the first is left out if processes decide together.

    All processes ask before the same call.
    """
    if root.number is None:
        return "other processes may not call it: it is in no DistributedDataParallel"
    return communicates(root, recorded)


def communicates(root: Root, recorded: RecordedCall) -> str | None:
    """Returns why one process must not run the module alone: it communicates with other processes.

    All processes check this before the same call, so that every communication has its counterpart.
    """
    before = sequence_numbers()
    try:
        with no_trace(root.module):
            RootProbe(root, few_rows(recorded, _ROWS)).run(RootPlan())
    except Exception as error:
        return f"a try on {_ROWS} samples failed: {short(error)}"
    if sequence_numbers() == before:
        return None
    return "forward or backward speak to other processes, which the try of one would wait for"
