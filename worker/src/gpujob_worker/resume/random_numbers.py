"""The random state of a process as plain values and tensors, as a checkpoint holds it."""

from typing import Any

from gpujob_worker.probe.side_effects import RandomStates


def random_state() -> dict[str, Any]:
    """Every generator's state as plain values and tensors."""
    states = RandomStates()
    return {
        "python": states.python,
        "numpy": states.numpy,
        "torch": states.torch,
        "cuda": list(states.cuda),
    }


def restore_random(saved: dict[str, Any]) -> None:
    """Puts a state from `random_state` in force. GPUs that are gone keep their own."""
    states = RandomStates()
    states.python = saved["python"]
    states.numpy = saved["numpy"] if saved["numpy"] is not None else states.numpy
    states.torch = saved["torch"]
    if len(saved["cuda"]) == len(states.cuda):
        states.cuda = saved["cuda"]
    states.restore()


class Generators:
    """States of the loader's own generators (`generator=` of the loader and its samplers).

    A sampler may make its own with its first pass: there is none before it, and none to put back.
    """

    def __init__(self, loader: Any) -> None:
        batches = loader.batch_sampler
        self._owners = (loader, loader.sampler, batches, getattr(batches, "sampler", None))

    def states(self) -> list[Any]:
        return [None if found is None else found.get_state() for found in self._generators()]

    def restore(self, states: list[Any]) -> None:
        for generator, state in zip(self._generators(), states, strict=True):
            if generator is not None and state is not None:
                generator.set_state(state)

    def epochs(self) -> list[int | None]:
        """The epoch that each sampler has, from which its order follows."""
        found = [getattr(owner, "epoch", None) for owner in self._owners[1:]]
        return [epoch if type(epoch) is int else None for epoch in found]

    def tell_epochs(self, epochs: list[int | None]) -> None:
        """Gives samplers the epoch that they had before the interruption.

        Lightning begins the pass that it resumes before it tells its samplers the epoch.
        """
        for owner, epoch in zip(self._owners[1:], epochs, strict=True):
            tell = getattr(owner, "set_epoch", None)
            if epoch is not None and tell is not None:
                tell(epoch)

    def _generators(self) -> list[Any]:
        return [getattr(owner, "generator", None) for owner in self._owners]
