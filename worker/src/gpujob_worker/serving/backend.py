"""What executes a model for requests, whatever compiled it."""

from collections.abc import Mapping
from typing import Protocol

import torch

# By the names of the model's inputs or outputs. The first dimension counts samples. On the CPU.
Tensors = Mapping[str, torch.Tensor]


class Parking(Protocol):
    """Gives device memory back, and takes it again.

    Both operations do all or nothing: after an error the memory is where it was.
    """

    @property
    def host_bytes(self) -> int | None:
        """The memory of the host that `park` takes. None if it cannot park."""
        ...

    def park(self) -> None: ...

    def wake(self) -> None:
        """Undoes `park`. Raises what the device raises, such as `torch.OutOfMemoryError`."""
        ...


class Backend(Protocol):
    """One loaded model. `run` is called from one thread at a time, and not while it is parked."""

    @property
    def name(self) -> str:
        """The name in reports: `Eager`, `Compile` ..."""
        ...

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The only numbers of samples that `run` takes, ascending. None if it takes any."""
        ...

    @property
    def parking(self) -> Parking | None:
        """What moves its device memory. None if nothing can."""
        ...

    def run(self, inputs: Tensors) -> Tensors:
        """Returns the outputs once they are complete, in host memory. Raises what the model
        raises.
        """
        ...
