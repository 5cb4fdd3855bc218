"""Checks by its first steps whether a resumed run continues as the stopped one did.

The facts of the steps after a checkpoint (loss, learning rates, random numbers) are written next to
it. A resumed run compares its own before anything is saved. Each process of a gang has its own
file, and a difference in one of them counts for all.
"""

import json
import marshal
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from gpujob_worker.checkpoint.errors import CheckpointError
from gpujob_worker.checkpoint.manifest import read_small, write_at_once
from gpujob_worker.probe.side_effects import RandomStates
from gpujob_worker.run.session import Session

FILE = "continuation-{rank}.json"
# A second step shows whether the first one changed the weights in the same way.
STEPS = 2
# Other kernels, or another GPU of the same kind, round differently.
RELATIVE_DIFFERENCE_MAX = 1e-3
# On the CPU the same steps used the same kernels, but possibly another number of threads.
RELATIVE_DIFFERENCE_MAX_CPU = 1e-5

Facts = dict[str, Any]


def _alone(question: str, word: str | None) -> str | None:
    del question
    return word


class Continuation:
    """Records and compares steps. `passes` is called once after each step of the script.

    `first_word(question, word)` returns, in all processes, the answer of the first one that has
    any.
    """

    def __init__(
        self,
        session: Session,
        directory: Path,
        rank: int = 0,
        first_word: Callable[[str, str | None], str | None] = _alone,
    ) -> None:
        self._session = session
        self._path = directory / FILE.format(rank=rank)
        self._first_word = first_word
        self._step: int | None = None
        self._recorded: list[Facts] = []
        self._expected: list[Facts] | None = None
        self._count = self._compared = 0
        self._what = "loss"

    @property
    def records(self) -> bool:
        """Whether steps after a checkpoint are still being recorded."""
        return self._step is not None

    @property
    def recorded(self) -> int:
        return len(self._recorded)

    @property
    def compares(self) -> bool:
        """Whether it is not known yet that the run continues as before."""
        return self._expected is not None

    def record_after(self, step: int) -> None:
        """Records the next steps as those after the checkpoint of `step`."""
        self._step, self._recorded = step, []

    def compare_after(self, step: int) -> None:
        """Compares the next steps, which are the first ones after a resume from `step`."""
        known = self._read(step)
        if not known:
            text = "the steps after the stop are not known: nothing was compared"
            self._session.log.note("resume check", text)
        # All processes compare the same number of steps, and wait for each other.
        count = self._first_word("steps", str(len(known)) if known else None)
        self._expected = known[: int(count)] if count is not None else None
        self._count, self._compared = int(count or 0), 0

    def passes(self, loss: Any, optimizer: torch.optim.Optimizer | None) -> str | None:
        """Returns how the run differs from the earlier one, or None. `loss` is the step's loss as a
        tensor, or without an optimizer a number of the call's answer.
        """
        self._what = "loss" if optimizer is not None else "answer"
        if self._step is None and self._expected is None:
            return None
        facts = _facts(loss, optimizer)
        if self._step is not None:
            self._recorded.append(facts)
            text = json.dumps({"step": self._step, "next": self._recorded})
            write_at_once(self._path, text.encode())
            if len(self._recorded) >= STEPS:
                self._step = None
        return self._compare(facts) if self._expected is not None else None

    def _compare(self, facts: Facts) -> str | None:
        assert self._expected is not None
        expected, at = self._expected, self._compared
        self._compared += 1
        differs = self._difference(expected[at], facts) if at < len(expected) else None
        differs = self._first_word(f"step {self._compared}", differs)
        if differs is None and self._compared >= self._count:
            self._expected = None
            self._say_compared(expected, facts)
        return differs

    def _difference(self, before: Facts, facts: Facts) -> str | None:
        for name, what in (("rates", "learning rates"), ("random", "random numbers")):
            if before.get(name) != facts[name]:
                shown = f": {before.get(name)} and now {facts[name]}" if name == "rates" else ""
                return f"the {what} of step {self._compared} after the stop are others{shown}"
        loss: float | None = facts["loss"]
        known: float | None = before.get("loss")
        if loss is None or known is None:
            alike = loss is known
        else:
            alike = math.isclose(loss, known, rel_tol=self._difference_max)
        if not alike:
            of = f"the {self._what} of step {self._compared} after the stop"
            return f"{of} is {loss} and would have been {known}"
        return None

    def _say_compared(self, expected: list[Facts], facts: Facts) -> None:
        if not expected:
            return
        loss, known = facts["loss"], expected[-1].get("loss")
        same = "the same" if loss == known else f"{known} before the stop"
        count = f"{len(expected)} step" + ("s" if len(expected) > 1 else "")
        text = f"{count} compared: the {self._what} is {loss}, {same}"
        self._session.log.note("resume check", text)

    @property
    def _difference_max(self) -> float:
        on_cpu = self._session.state.device in ("", "cpu")
        return RELATIVE_DIFFERENCE_MAX_CPU if on_cpu else RELATIVE_DIFFERENCE_MAX

    def _read(self, step: int) -> list[Facts]:
        try:
            found = json.loads(read_small(self._path))
            return list(map(dict, found["next"]))[:STEPS] if found["step"] == step else []
        except (CheckpointError, OSError, ValueError, KeyError, TypeError):
            return []


def _facts(loss: Any, optimizer: torch.optim.Optimizer | None) -> Facts:
    groups = optimizer.param_groups if optimizer is not None else ()
    rates = [float(group.get("lr", 0.0)) for group in groups]
    return {"loss": _finite(loss), "rates": rates, "random": _random_digest()}


def _finite(loss: Any) -> float | None:
    try:
        value = float(loss)
    except (TypeError, RuntimeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _random_digest() -> str:
    """Returns a digest of the CPU streams from which batches and augmentations are drawn."""
    states = RandomStates()
    # Version 2 writes shared values once per occurrence, so equal states have equal bytes.
    digest = xxhash.xxh3_64(marshal.dumps(states.python, 2))
    for part in states.numpy if isinstance(states.numpy, tuple) else (states.numpy,):
        # The text of an array depends on the script's print options and takes far longer.
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    digest.update(states.torch.numpy().tobytes())
    return digest.hexdigest()
