"""Models in training with modules that were called already."""

from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.run.session import Session
from gpujob_worker.tune.tuner import Tuner


def trained_model(
    session: Session,
    *roots: Root,
    facts: ScriptFacts | None = None,
    tuner: Tuner | None = None,
) -> TrainedModel:
    model = TrainedModel(session, facts if facts is not None else ScriptFacts())
    for root in roots:
        model.meet(root)
    if tuner is not None:
        model.first.use(tuner)
    return model
