"""What executes a model for requests, whatever compiled it."""

from collections.abc import Mapping
from typing import Protocol

import torch

# By the names of the model's inputs or outputs. The first dimension counts samples. On the CPU.
Tensors = Mapping[str, torch.Tensor]


class Backend(Protocol):
    """One loaded model. `run` is called from one thread at a time."""

    @property
    def name(self) -> str:
        """The name in reports: `Eager`, `Compile` ..."""
        ...

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The only numbers of samples that `run` takes, ascending. None if it takes any."""
        ...

    def run(self, inputs: Tensors) -> Tensors:
        """Returns the outputs once they are complete, in host memory. Raises what the model
        raises.
        """
        ...
