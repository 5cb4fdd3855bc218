"""The random state of a process as plain values and tensors, in the form of a checkpoint."""

from typing import Any

import numpy as np
import xxhash

from gpujob_worker.probe.side_effects import RandomStates


def random_state() -> dict[str, Any]:
    """Returns every generator's state as plain values and tensors."""
    states = RandomStates()
    return {
        "python": states.python,
        "numpy": states.numpy,
        "torch": states.torch,
        "cuda": list(states.cuda),
    }


def restore_random(saved: dict[str, Any]) -> None:
    """Restores a state from `random_state`. If the number of GPUs differs, they keep their own
    states.
    """
    states = RandomStates()
    states.python = saved["python"]
    states.numpy = saved["numpy"] if saved["numpy"] is not None else states.numpy
    states.torch = saved["torch"]
    if len(saved["cuda"]) == len(states.cuda):
        states.cuda = saved["cuda"]
    states.restore()


# A sampler that distributes another one's batches is nested only a few levels deep.
_SAMPLERS_DEEP_MAX = 8


class Generators:
    """States of the loader's own generators (`generator=` of the loader and its samplers).

    A sampler may make its own with its first pass. Before that there is none, and none to restore.
    """

    def __init__(self, loader: Any) -> None:
        self._owners = (loader, loader.sampler, *_nested(loader.batch_sampler))

    def states(self) -> list[Any]:
        return [None if found is None else found.get_state() for found in self._generators()]

    def restore(self, states: list[Any]) -> None:
        for generator, state in zip(self._generators(), states, strict=False):
            if generator is not None and state is not None:
                generator.set_state(state)

    def epochs(self) -> list[int | None]:
        """Returns the epoch of each sampler, from which its order follows."""
        found = [getattr(owner, "epoch", None) for owner in self._owners[1:]]
        return [epoch if type(epoch) is int else None for epoch in found]

    def tell_epochs(self, epochs: list[int | None]) -> None:
        """Sets the epoch that samplers had before the interruption.

        Lightning begins the resumed pass before it sets its samplers' epoch.
        """
        for owner, epoch in zip(self._owners[1:], epochs, strict=False):
            tell = getattr(owner, "set_epoch", None)
            if epoch is not None and tell is not None:
                tell(epoch)

    def orders(self) -> list[str | None]:
        """Returns hashes of the weights or the indices by which samplers draw.

        A script may have drawn them, and a resume would then find others.
        """
        return [_content_hash(owner) for owner in self._owners[1:]]

    def _generators(self) -> list[Any]:
        return [getattr(owner, "generator", None) for owner in self._owners]


def _content_hash(sampler: Any) -> str | None:
    found = [getattr(sampler, name, None) for name in ("weights", "indices")]
    known = next((each for each in found if each is not None), None)
    try:
        content = np.ascontiguousarray(known) if known is not None else None
    except (TypeError, ValueError, RuntimeError):
        return None
    if content is None or content.dtype.hasobject:
        return None
    return xxhash.xxh3_64(content.data).hexdigest() if content.size else ""


def _nested(batches: Any) -> list[Any]:
    """Returns a loader's batch sampler and the samplers in it, the outermost first.

    Accelerate distributes a sampler's batches to several processes by another sampler around it.
    The generator from which the order is drawn is that of the innermost.
    """
    found: list[Any] = []
    while batches is not None and len(found) < _SAMPLERS_DEEP_MAX:
        found += [batches, getattr(batches, "sampler", None)]
        batches = getattr(batches, "batch_sampler", None)
    return found
