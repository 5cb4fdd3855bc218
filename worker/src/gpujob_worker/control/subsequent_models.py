"""Handles scripts that train several models in sequence: folds, sweeps, a search and its result.

A later model of the same shape starts with the settings of the first model, like those of an
earlier run (`startup`). A model of another shape runs as written, except for settings that keep a
memory limit.
"""

import gc
import time
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from gpujob_api.settings import OptimizeMode, TunedSettings
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.control.tuned_optimizers import trains
from gpujob_worker.inject.fused_optimizer import parameters_of
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.run.session import Session

ITEM, LIMIT = "later models", "memory limit"
# Part of the run's time, beyond the tuning budget, for checking later models.
SECONDS_FRACTION = 0.05
# After this many consecutive models that were dropped before a tuning, no others are tuned, because
# the script makes them for a few steps.
UNTUNED_MAX = 8
# Garbage collections that found the previous model still in use. A script may create many models
# next to it.
LOOKS_MAX = 3
# Maximum number of reasons that are listed, and of reasons that are counted.
REASONS_MAX, REASONS_KEPT_MAX = 3, 32


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties that two models must share to use the same settings."""

    name: str
    layers: tuple[Any, ...]
    parameters: tuple[Any, ...]
    optimizers: tuple[str, ...]
    inputs: tuple[Any, ...]

    def difference(self, other: "Shape", shapes: set[tuple[Any, ...]]) -> str | None:
        """Returns how `other` differs, for people, or None. `shapes` are the input shapes of this
        model.
        """
        if self.layers != other.layers:
            return f"{other.name} is another model than {self.name}"
        if self.parameters != other.parameters:
            return f"{other.name} has other parameters"
        if self.optimizers != other.optimizers:
            return f"{', '.join(other.optimizers) or 'no optimizer'} steps it"
        varies = len(shapes) > 1 and _kinds(self.inputs) == _kinds(other.inputs)
        if other.inputs != self.inputs and not varies:
            return f"{other.name} has another shape of batch"
        return None


class SubsequentModels:
    """Decides when the next model's training begins, and with which settings."""

    def __init__(self, session: Session, model: TrainedModel) -> None:
        self._session = session
        self._model = model
        self._made: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._first: Shape | None = None
        self._inputs: set[tuple[Any, ...]] = set()
        self._begins = True
        # An optimizer that steps the model in training was seen.
        self._owned = False
        self._began = time.monotonic()
        self._seconds = 0.0
        self._looks = self._untuned = 0
        self._count = self._started = 0
        self._settings: list[str] = []
        self._reasons: dict[str, int] = {}
        # Reasons without the names of models, and the content of the last printed text.
        self._kinds: set[str] = set()
        self._meaning: tuple[Any, ...] = ()
        # The model's settings are logged when its optimizer steps, because they are known then.
        self.waits = False
        # One parameter of each model that is passed over, to recognize its other optimizers. The
        # dictionary compares by identity, because comparing tensors returns a tensor.
        self._passed: Any = WeakTensorKeyDictionary()

    @property
    def watches(self) -> bool:
        """True if later models are handled at all."""
        asked = self._session.environment.settings.mode is not OptimizeMode.OFF
        looks = asked and self._left_alone is None
        return looks and self._untuned < UNTUNED_MAX and (self._limited or self._in_time())

    @property
    def _left_alone(self) -> str | None:
        """The reason why this run handles its first model alone, or None."""
        if self._session.environment.settings.mode is OptimizeMode.RECOMMEND:
            return "mode Recommend looks at the first model alone"
        if self._session.world_size > 1:
            return "several processes that train together look at the first model alone"
        return None

    def passes(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether an optimizer's first step starts a model that is not handled.

        Logs the reason, and that its steps do not belong to the first model.
        """
        session, why = self._session, self._left_alone
        if not session.optimizes or why is None or not self._is_another(optimizer):
            return False
        for parameter in parameters_of(optimizer)[:1]:
            self._passed[parameter] = True
        self._count += 1
        session.state.begin_model(alike=False)
        text = f"{why}; {self._count} more ran as written"
        text += ", without a look at the memory limit" if self._limited else ""
        session.log.skipped(ITEM, text, aloud=self._count == 1)
        return True

    def _is_another(self, optimizer: torch.optim.Optimizer) -> bool:
        model = self._model
        if not model.facts.stepped or any(p in self._passed for p in parameters_of(optimizer)):
            return False
        if model.roots:
            return not trains(optimizer, model.roots)
        return not model.facts.optimizers

    @property
    def _limited(self) -> bool:
        return self._session.environment.memory_limit_bytes is not None

    def _in_time(self) -> bool:
        lasted = time.monotonic() - self._began
        allowed = self._session.tuning_budget_seconds + SECONDS_FRACTION * lasted
        return self._seconds <= allowed

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        self._made.add(optimizer)

    def steps(self, module: torch.nn.Module) -> bool:
        """Returns whether an optimizer was made for parameters of the module."""
        theirs = {id(parameter) for parameter in module.parameters()}
        return any(id(p) in theirs for optimizer in self._made for p in parameters_of(optimizer))

    def suits(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether a new optimizer gets the settings of the previous one, which is gone."""
        if not self._model.facts.stepped:
            return True
        if not self._model.roots or self._first is None:
            return False
        owned = trains(optimizer, [self._model.roots[0]])
        return owned and type(optimizer).__name__ in self._first.optimizers

    def is_over(self, *, warm: bool) -> bool:
        """Returns whether the model that was trained so far is over. It has made a step.

        With `warm`, it has made several steps, so another model next to it would have been called
        by now.
        """
        if self._nobody_steps():
            return True
        if not warm or self._looks >= LOOKS_MAX:
            return False
        # A scheduler and its optimizer reference each other.
        start = time.monotonic()
        gc.collect()
        self._seconds += time.monotonic() - start
        over = self._nobody_steps()
        self._looks = 0 if over else self._looks + 1
        return over

    def warm(self) -> None:
        """Called when the roots of the model in training are known and their optimizer has
        stepped.
        """
        roots, optimizers = self._model.roots, self._model.facts.optimizers
        self._owned = any(trains(optimizer, roots) for optimizer in optimizers)

    def _nobody_steps(self) -> bool:
        roots, optimizers = self._model.roots, self._model.facts.optimizers
        if not optimizers or not roots:
            return True
        # Optimizers of other models may be kept. If none stepped these roots, all must be gone.
        return self._owned and not any(trains(optimizer, roots) for optimizer in optimizers)

    def begin(self) -> None:
        """Ends the previous model. The next call of a root is the first one of another model."""
        self._begins = True
        self._owned = False
        self._untuned += self._session.state.tuning_seconds is None
        self._model.renew()
        self._session.state.start_with_scale(None)
        if self._limited:
            # The memory of the previous model would count as that of this one.
            self._session.meter.memory.trim()

    def before_call(self, root: Root) -> None:
        """Called before the very first call of a training's first root is prepared."""
        if not self._begins:
            return
        self._begins = False
        session, model = self._session, self._model
        shape = self._shape(root)
        if session.state.tuning_seconds is None:
            self._first, self._inputs = shape, root.signatures
            return
        self._count += 1
        reason = self._refusal(shape)
        whose = f" in model {self._count + 1} ({shape.name})"
        model.begin(whose, alike=reason is None)
        session.state.begin_model(alike=reason is None)
        tuned = session.state.tuned if reason is None else None
        session.state.start_with(tuned or TunedSettings())
        self.waits = True
        if reason is not None:
            self._plain(reason, shape.name)

    def unseen(self) -> None:
        """Called when an optimizer starts with a model that cannot be seen, after the previous one
        is gone.
        """
        follows = self._model.facts.stepped and self._session.state.tuning_seconds is not None
        if follows and self.watches:
            self._count += 1
            self._plain("the script compiles its model itself")

    def _plain(self, reason: str, name: str = "") -> None:
        kind = reason.removeprefix(name)
        if len(self._reasons) >= REASONS_KEPT_MAX and reason not in self._reasons:
            reason = kind = "other reasons"
        self._kinds.add(kind)
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
        self._say()

    def _refusal(self, shape: Shape) -> str | None:
        if self._first is None:
            return "no model was seen in the first training"
        if not self._limited and not self._in_time():
            return "there was no time to look at it"
        return self._first.difference(shape, self._inputs)

    def spent(self, seconds: float) -> None:
        if self._count:
            self._seconds += seconds
            if not self.watches:
                self._say()

    def stepped(self) -> None:
        """Called just before a later model's first optimizer step, when its settings are known."""
        if not self.waits:
            return
        self.waits = False
        model, say = self._model, self._session.log
        limit = model.log.decision(LIMIT)
        if limit is not None:
            say.note(f"{LIMIT},", limit.text + model.whose)
        if not model.first_shape:
            return
        names = _names(model.first.tuner.tuned() if model.first.tuner is not None else None)
        skipped = [str(decision) for decision in model.log.skips]
        skipped += [model.first.refusal] if model.first.refusal is not None else []
        wanted = _names(self._session.state.known_tuned)
        if wanted and skipped:
            say.note("skipped", f"{model.whose.strip()}: {'; '.join(skipped)}")
        if names:
            self._started += 1
            self._settings = names
            self._say()
        elif wanted:
            self._plain("they are not safe there")
        else:
            taken_back = say.decision("roll-back") is not None
            self._plain("they were taken back" if taken_back else "the first one runs so too")

    def _say(self) -> None:
        if not self._count:
            return
        first = self._first.name if self._first is not None else "the first"
        text = f"{self._started} of {self._count} started with the settings found for {first}"
        text += f": {', '.join(self._settings)}" if self._settings else ""
        if not self.watches:
            # Precedes the reasons, whose end may be cut off.
            text += "; the time for looking at models is over, those that follow run as written"
        plain = "as written but for the memory limit" if self._limited else "as written"
        reasons = list(self._reasons.items())
        for reason, number in reasons[:REASONS_MAX]:
            text += f"; {number} {plain}: {reason}"
        others = sum(number for _, number in reasons[REASONS_MAX:])
        text += f"; {others} more {plain}" if others else ""
        # A text in which only counts change is printed at the end only.
        meaning = (self._started > 0, self._settings, self.watches, len(self._kinds))
        self._session.log.note(ITEM, text, aloud=meaning != self._meaning)
        self._meaning = meaning

    def _shape(self, root: Root) -> Shape:
        module, recorded = root.module, root.recorded
        steppers = [type(owner).__name__ for owner in self._made if trains(owner, [root])]
        parameters = (
            (name, _size(p), p.dtype, p.requires_grad, p.device.type)
            for name, p in module.named_parameters()
        )
        return Shape(
            name=type(module).__name__,
            layers=tuple((name, _kind(layer)) for name, layer in module.named_modules()),
            parameters=tuple(parameters),
            optimizers=tuple(sorted(steppers)),
            inputs=recorded.inputs.signature if recorded is not None else (),
        )


def _kind(layer: torch.nn.Module) -> str:
    # Compared by name, because a class that a function makes is another one in each call.
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _size(parameter: torch.nn.Parameter) -> tuple[int, ...] | None:
    lazy = torch.nn.parameter.is_lazy(parameter)  # it has no size before the first call
    return None if lazy else tuple(parameter.shape)


def _kinds(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types and dimensions without the sizes."""
    return tuple((len(x[0]), x[1]) if isinstance(x, tuple) else x for x in inputs)


def _names(tuned: TunedSettings | None) -> list[str]:
    """Returns the differences from a script as written, for people. Loaders have their own line."""
    said = tuned.in_words() if tuned is not None else {}
    said.pop("data_loader_workers", None)
    if tuned is not None and tuned.batch_per_step is not None:
        # the words that all lines of a run use
        said["batch_per_step"] = f"steps of {tuned.batch_per_step}"
    return list(said.values())
