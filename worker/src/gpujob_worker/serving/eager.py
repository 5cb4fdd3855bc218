"""The model as written: the backend that is always there, and that others are compared with."""

import torch

from gpujob_api.serving import BackendName
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.signature import Signature
from gpujob_worker.serving.weights import Weights


class EagerBackend:
    name = BackendName.EAGER.value
    sizes: tuple[int, ...] | None = None

    def __init__(self, model: torch.nn.Module, signature: Signature) -> None:
        self.parking = Weights(model)
        self._model = model
        self._signature = signature
        self._device = next((one.device for one in model.parameters()), torch.device("cpu"))

    def run(self, inputs: Tensors) -> Tensors:
        with torch.inference_mode():
            moved = {name: tensor.to(self._device) for name, tensor in inputs.items()}
            # The copy to host memory waits for the device.
            outputs = self._signature.call(self._model, moved)
            return {name: tensor.cpu() for name, tensor in outputs.items()}
