"""Backends for tests: they double their input, fail at chosen values, or wait to be let on."""

import threading

import torch

from gpujob_worker.serving.backend import Parking, Tensors

SECONDS_MAX = 60.0
POISON = 666.0


def samples(*values: float) -> dict[str, torch.Tensor]:
    """One input of two features a sample."""
    return {"x": torch.tensor(values, dtype=torch.float32).unsqueeze(1).repeat(1, 2)}


def values(outputs: Tensors) -> list[float]:
    return [float(value) for value in outputs["y"][:, 0]]


class Doubling:
    """Returns twice its input, and keeps the first feature of each batch."""

    name = "Doubling"
    parking: Parking | None = None

    def __init__(self, sizes: tuple[int, ...] | None = None) -> None:
        self.sizes = sizes
        self.batches: list[list[float]] = []

    def run(self, inputs: Tensors) -> Tensors:
        x = inputs["x"]
        if self.sizes is not None:
            assert len(x) in self.sizes
        self.batches.append([float(value) for value in x[:, 0]])
        return {"y": 2 * x}


class Failing(Doubling):
    """Raises for batches with POISON in them, and for those larger than the memory."""

    def __init__(
        self,
        sizes: tuple[int, ...] | None = None,
        memory_samples: int = 10**9,
        error: BaseException | None = None,
    ) -> None:
        super().__init__(sizes)
        self.memory_samples = memory_samples
        self.error = error or ValueError("poisoned")

    def run(self, inputs: Tensors) -> Tensors:
        outputs = super().run(inputs)
        if len(inputs["x"]) > self.memory_samples:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        if (inputs["x"] == POISON).any():
            raise self.error
        return outputs


class Gated(Failing):
    """Each batch waits for one `let_on`."""

    def __init__(self, sizes: tuple[int, ...] | None = None) -> None:
        super().__init__(sizes)
        self._entered = threading.Semaphore(0)
        self._gate = threading.Semaphore(0)

    def wait_for_batch(self) -> None:
        assert self._entered.acquire(timeout=SECONDS_MAX)

    def let_on(self, batches: int = 1) -> None:
        self._gate.release(batches)

    def run(self, inputs: Tensors) -> Tensors:
        self._entered.release()
        assert self._gate.acquire(timeout=SECONDS_MAX)
        return super().run(inputs)
