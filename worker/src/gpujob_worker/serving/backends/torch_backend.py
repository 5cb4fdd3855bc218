"""A function of torch tensors as a backend: moves inputs to the device, and outputs back."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import torch

from gpujob_worker.inject.process_flags import without_tf32
from gpujob_worker.serving.backend import Parking, Tensors
from gpujob_worker.serving.signature import Signature

# Of the signature's inputs, in their order, to its outputs.
Function = Callable[..., Sequence[torch.Tensor]]


class SizeError(ValueError):
    """A number of samples that the backend was not built for."""


class TorchBackend:
    """Executes `function`. With `sizes`, no other number of samples reaches it."""

    def __init__(
        self,
        name: str,
        function: Function,
        signature: Signature,
        device: torch.device,
        *,
        sizes: tuple[int, ...] | None = None,
        tf32: bool = False,
        parking: Parking | None = None,
    ) -> None:
        self.name = name
        self.sizes = sizes
        self.parking = parking
        self._function = function
        self._signature = signature
        self._device = device
        self._tf32 = tf32

    def run(self, inputs: Tensors) -> Tensors:
        """See `Backend.run`. Raises `SizeError` for a size that was not built."""
        check_size(self.name, self.sizes, inputs)
        with torch.inference_mode(), products_in(self._device, tf32=self._tf32):
            moved = [inputs[spec.name].to(self._device) for spec in self._signature.inputs]
            outputs = self._function(*moved)
            specs = self._signature.outputs
            # The copy to host memory waits for the device.
            return {spec.name: out.cpu() for spec, out in zip(specs, outputs, strict=True)}


def check_size(name: str, sizes: tuple[int, ...] | None, inputs: Tensors) -> None:
    """Raises `SizeError` for a size that the backend was not built for."""
    samples = len(next(iter(inputs.values())))
    if sizes is not None and samples not in sizes:
        built = ", ".join(map(str, sizes))
        raise SizeError(f"{name} was built for {built} samples; got {samples}: pad the batch")


@contextmanager
def products_in(device: torch.device, *, tf32: bool) -> Generator[None]:
    """Sets whether float32 products are rounded to TF32. Convolutions are by torch's default."""
    if device.type != "cuda":
        yield
        return
    with without_tf32():
        if tf32:
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.allow_tf32 = True
        yield
