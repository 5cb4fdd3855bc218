"""Plain loops over a `DataLoader`, without any code for checkpoints: begun again at their place.

What the script made is saved between two batches. To come back, the script runs as written, and
gets one batch of each pass that was finished, until it asks for the pass in which it stopped: there
everything is put back. What the script counts itself begins anew. Best effort; the first loss is
compared with the one that the run before had.
"""

import functools
import itertools
import os
import weakref
from pathlib import Path
from typing import Any

import torch

from gpujob_worker.checkpoint.errors import CorruptError, MismatchError
from gpujob_worker.checkpoint.manifest import read_small, write_durably
from gpujob_worker.resume.first_loss import FirstLoss
from gpujob_worker.resume.passes import Pass
from gpujob_worker.resume.script_objects import ScriptObjects
from gpujob_worker.resume.unmodified import Unmodified
from gpujob_worker.run.graceful_stop import Interrupted

KIND = "plain script"
REFUSED_FILE = "not-resumable"
AHEAD = "_gpujob_ahead"
# Batches that the script gets of a pass that was finished before the stop: loops that divide by
# their number of batches need one.
_OF_A_FINISHED_PASS = 1
_ITEM = "resume"


class PlainScript:
    """The script as the one training of the process."""

    kind = KIND
    # What the script did since its last batch (a schedule's step) would be done twice.
    leaves_evaluations = False

    def __init__(self, unmodified: Unmodified) -> None:
        self._unmodified = unmodified
        self._objects = ScriptObjects()
        # In the order of their first passes, also of loaders that are gone: a script may make one
        # for each pass.
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count()
        self._passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._loader: weakref.ref[Any] | None = None
        self._last: weakref.ref[Any] | None = None
        self._since_step: set[int] = set()
        self._mixed_steps = 0
        self._saved: dict[str, Any] | None = None
        self._looked = False
        self._refused = False

    def install(self) -> None:
        self._objects.install()
        passes = self._unmodified.passes
        passes.shortened = self._shortened
        self._unmodified.plain = self
        self._watch_saves()

    @property
    def skipping(self) -> bool:
        """Whether the script is on its way to the place at which it stopped."""
        return self._saved is not None

    def owns(self, loader: Any) -> bool:
        return self._loader is not None and self._loader() is loader

    def consumed(self, record: Pass) -> int:
        return record.fetched - int(getattr(record.loader, AHEAD, 0))

    def between_batches(self) -> bool:
        return True

    def steps_total(self) -> int | None:
        return None

    def snapshot(self) -> dict[str, Any]:
        loader = self._loader() if self._loader is not None else None
        return {
            "loader": self._numbers.get(loader, 0),
            "pass": self._passes.get(loader, 0),
            "ended": self._ended(),
            "objects": self._objects.states(),
        }

    def _ended(self) -> bool:
        """Whether the script has had the last batch of its pass."""
        record = self._unmodified.pass_under_way
        try:
            return record is not None and self.consumed(record) >= len(record.loader)
        except TypeError:
            return False

    def begins(self, loader: Any) -> None:
        """Any pass of any loader begins, outside of a trainer."""
        if loader not in self._numbers:
            self._numbers[loader] = next(self._next_number)
        self._passes[loader] = self._passes.get(loader, 0) + 1
        if not self._looked and not self._unmodified.waits_for_group:
            self._looked = True
            self._look()
        if self._saved is not None and self._is_place(loader) and not self._saved["body"]["ended"]:
            self._arrive(loader)

    def _is_place(self, loader: Any) -> bool:
        """Whether the loader's pass is the one in which the script stopped."""
        assert self._saved is not None
        body = self._saved["body"]
        at = self._numbers.get(loader), self._passes.get(loader)
        return at == (body["loader"], body["pass"])

    def fetches(self, loader: Any) -> None:
        self._last = weakref.ref(loader)
        self._since_step.add(id(loader))

    def stepped(self) -> None:
        """An optimizer made a step outside of a trainer."""
        mixed, self._since_step = len(self._since_step) > 1, set()
        if self._refused or self.skipping:
            return
        loader = self._last() if self._last is not None else None
        self._mixed_steps = self._mixed_steps + 1 if mixed else 0
        if self._mixed_steps > 1:
            self._refuse("a step reads from several loaders")
        elif loader is None:
            self._refuse("its loop reads no DataLoader")
        elif self._unmodified.training is None:
            self._first_step(loader)
        elif not mixed:
            self._loader = weakref.ref(loader)

    def _first_step(self, loader: Any) -> None:
        if not self._looked:
            size = self._unmodified.session.environment.world_size
            self._refuse(f"its loop began before the process group of its {size} processes")
            return
        spread = self._objects.spread()
        if spread is not None:
            self._refuse(f"{spread}, which is not saved yet")
            return
        self._loader = weakref.ref(loader)
        self._begin()

    def ended(self, well: bool) -> None:
        """If the place was not reached, the next attempt starts as written. Without an error the
        script had a batch of each pass, and what it has is not what it is to learn.
        """
        if not self.skipping:
            return
        self._give_up("the script ended before it came to the place at which it had stopped")
        if well:
            self._unmodified.session.leaves_unfinished()

    def _look(self) -> None:
        unmodified = self._unmodified
        if unmodified.opens_when_it_trains or not self._opened():
            return
        loaded = unmodified.loaded
        if loaded is None or loaded.state.get("kind") != KIND:
            return
        saved = self._saved = loaded.state
        unmodified.session.explanation.note(
            _ITEM, f"{KIND}: on the way to step {loaded.step}, a batch of each finished pass"
        )
        # What runs between passes sees trained weights; schedulers and the like are put back later.
        if self._objects.mismatch(saved["body"]["objects"]) is None:
            self._objects.restore(saved["body"]["objects"])

    def _opened(self) -> bool:
        """Whether it is saved."""
        refusal = self._unmodified.open_store() or self._given_up_before()
        if refusal is not None:
            self._refuse(refusal)
        return refusal is None

    def _begin(self) -> None:
        unmodified = self._unmodified
        if not self._looked or not self._opened():
            return
        if unmodified.gang is None and unmodified.store is not None:
            unmodified.first_loss = FirstLoss(unmodified.session, unmodified.store.directory)
        unmodified.begin(self)

    def _arrive(self, loader: Any) -> None:
        unmodified = self._unmodified
        assert self._saved is not None
        body = self._saved["body"]
        step = unmodified.loaded.step if unmodified.loaded is not None else 0
        self._loader = weakref.ref(loader)
        try:
            self._objects.restore(body["objects"])
        except MismatchError as error:
            self._give_up(str(error))
            raise Interrupted(saved=False) from None
        self._saved = None
        # What was read on the way (by an evaluation, say) is not read by the first step.
        self._since_step.clear()
        self._begin()
        if unmodified.first_loss is not None:
            unmodified.first_loss.compare_after(step)
        unmodified.session.explanation.note(
            _ITEM,
            f"{KIND}: from step {step}, best effort: {len(body['objects'])} objects, order and"
            " random numbers are put back; what the script counts itself begins anew",
        )

    def _shortened(self, record: Pass) -> int | None:
        if self._saved is None:
            return None
        if record.fetched >= _OF_A_FINISHED_PASS and self._is_place(record.loader):
            # Its batches were all trained on: what follows the pass is run for real.
            self._arrive(record.loader)
            self._unmodified.arrived_at_end(record)
        return _OF_A_FINISHED_PASS

    def _refuse(self, why: str) -> None:
        self._refused = True
        self._unmodified.session.explanation.skipped(_ITEM, f"{KIND}: {why}")
        if self._unmodified.training is self:
            self._unmodified.end()

    def _give_up(self, why: str) -> None:
        store = self._unmodified.store
        assert store is not None
        write_durably(store.directory / REFUSED_FILE, why.encode()[:1000])
        self._saved = None
        self._refuse(f"{why}; the next attempt starts from the beginning")

    def _given_up_before(self) -> str | None:
        store = self._unmodified.store
        path = store.directory / REFUSED_FILE if store is not None else None
        if path is None or not path.exists():
            return None
        try:
            return read_small(path).decode(errors="replace")
        except CorruptError:
            return "an earlier attempt found it not resumable"

    def _watch_saves(self) -> None:
        """On the way, files that are there are not written over: weights are not those of then."""
        plain = torch.save

        @functools.wraps(plain)
        def save(obj: Any, f: Any, *arguments: Any, **keywords: Any) -> Any:
            if self.skipping and isinstance(f, (str, os.PathLike)) and Path(f).exists():
                self._unmodified.session.explanation.note(
                    "resume files", f"{Path(f).name} stays as it is until the place is reached"
                )
                return None
            return plain(obj, f, *arguments, **keywords)

        torch.save = save


def adapt_accelerate(module: Any) -> None:
    """Its loaders are one batch ahead of the loop."""
    kind = module.DataLoaderAdapter
    plain = kind.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:  # noqa: N807
        plain(self, *arguments, **keywords)
        vars(self.base_dataloader)[AHEAD] = 1

    kind.__init__ = __init__
