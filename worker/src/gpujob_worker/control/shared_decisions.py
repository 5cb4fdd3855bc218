"""Reduces each process's choices to those that all processes made (`consensus`), module by module.

All processes call each function at the same point, before the choices are applied. It does nothing
in a process that decides alone.
"""

from gpujob_api.settings import TunedSettings
from gpujob_worker.control.consensus import COMPILED, MEASURED, Choices, known_round
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.control.tuned_module import TunedModule
from gpujob_worker.tune.registry import keep_only, setting_called


def settle(model: TrainedModel) -> None:
    """Called after the measurement."""
    consensus, tuner = model.consensus, model.first.tuner
    if consensus is None or tuner is None:
        return
    first, mine = model.first_number, tuner.tuned()
    if consensus.leads:
        consensus.propose(first, mine)
    numbered = {module.root.number: module for module in model.further}
    others = {number: module for number, module in numbered.items() if number is not None}
    chosen = {number: module.choices.tuned() for number, module in others.items()}
    agreed = consensus.settle(MEASURED, Choices(first, {**chosen, first: mine}))
    _keep_of_first(model, mine, agreed[first])
    for number, module in others.items():
        _keep_of_further(model, module, agreed[number])


def settle_compiled(model: TrainedModel) -> None:
    """Called after code was compiled in the middle of a run. It is kept if every process found it
    close.

    The other settings were decided before, and stay.
    """
    consensus, tuner = model.consensus, model.first.tuner
    assert consensus is not None
    first = model.first_number
    mine = tuner.tuned() if tuner is not None else TunedSettings()
    if consensus.leads:
        consensus.propose(first, mine, COMPILED)
    agreed = consensus.settle(COMPILED, Choices(first, {first: mine}))[first]
    if tuner is not None:
        setting_called("compile").keep_only(tuner.applied, agreed)
    if mine.compile and not agreed.compile:
        for item in model.log.applied_items("compile"):
            model.log.skipped(item, "not close, or not compiled, in all processes")


def settle_known(model: TrainedModel, module: TunedModule) -> None:
    """Called after known settings were checked on a call of this module."""
    if model.consensus is None or module.tuner is None:
        return
    is_first = module is model.first
    number = model.first_number if is_first else module.root.number
    if number is None:
        return
    mine = module.tuner.tuned()
    choices = Choices(number, {number: mine})
    agreed = model.consensus.settle(known_round(number), choices)[number]
    if is_first:
        _keep_of_first(model, mine, agreed)
    else:
        _keep_of_further(model, module, agreed)


def _keep_of_first(model: TrainedModel, mine: TunedSettings, agreed: TunedSettings) -> None:
    assert model.consensus is not None
    keep_only(model.first.choices.applied, agreed)
    kept = "the same in all" if agreed == mine else "less in some, and now in all"
    text = f"{model.consensus.size} processes decided together; {kept}"
    model.session.log.note("processes", text)


def _keep_of_further(model: TrainedModel, module: TunedModule, agreed: TunedSettings) -> None:
    mine = module.choices.tuned()
    keep_only(module.choices.applied, agreed)
    if agreed != mine:
        module.log.skipped("settings for speed", "not safe in all processes")
        # The applied settings are no longer those that were measured.
        model.session.state.gained(agreed, None)
