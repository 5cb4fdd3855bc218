"""Whether a resumed run is the one that stopped: the loss of its first step says so.

The loss of the step after a checkpoint is written beside it; who resumes compares.
"""

import json
import math
from pathlib import Path

from gpujob_worker.checkpoint.errors import CorruptError
from gpujob_worker.checkpoint.manifest import read_small, write_durably
from gpujob_worker.run.session import Session

FILE = "first-loss.json"
# Other kernels, or another GPU of the same kind, round otherwise.
RELATIVE_DIFFERENCE_MAX = 1e-3


class FirstLoss:
    """`passes` is called at each safe point, so once after each step."""

    def __init__(self, session: Session, directory: Path) -> None:
        self._session = session
        self._path = directory / FILE
        self._record: int | None = None
        self._expect: float | None = None
        self._compares = False

    def record_after(self, step: int) -> None:
        """The next step's loss is that of the first one after the checkpoint of `step`."""
        self._record = step

    def compare_after(self, step: int) -> None:
        """The next step is the first one after a resume from `step`."""
        self._compares, self._expect = True, self._read(step)

    def passes(self) -> None:
        step, self._record = self._record, None
        compares, self._compares = self._compares, False
        if step is None and not compares:
            return
        loss = self._session.state.loss
        if step is not None and loss is not None:
            text = json.dumps({"step": step, "loss": loss})
            write_durably(self._path, text.encode())
        if compares:
            self._compare(loss)

    def _compare(self, loss: float | None) -> None:
        explanation, before = self._session.explanation, self._expect
        if before is None:
            explanation.note("resume check", "the first loss before the stop is not known")
        elif loss is None:
            text = f"the first loss is not known or not finite, and would have been {before:.6g}"
            explanation.note("resume check", text)
        elif math.isclose(loss, before, rel_tol=RELATIVE_DIFFERENCE_MAX):
            how = "the same" if loss == before else f"{before:.6g} before the stop"
            explanation.note("resume check", f"the first loss is {loss:.6g}, {how}")
        else:
            explanation.note(
                "resume check",
                f"the first loss is {loss:.6g} and would have been {before:.6g}: this run is not"
                " the continuation of the one before in every part",
            )

    def _read(self, step: int) -> float | None:
        try:
            found = json.loads(read_small(self._path))
            return float(found["loss"]) if found["step"] == step else None
        except (CorruptError, ValueError, KeyError, TypeError):
            return None
