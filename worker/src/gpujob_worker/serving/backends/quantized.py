"""Weights in fewer bits. Only on request, because quality may fall and speed may too."""

import copy
import importlib
import importlib.util
import warnings
from typing import Any

import torch
from torch import nn

from gpujob_api.serving import Quantization
from gpujob_worker.serving.backends.answering import device_of
from gpujob_worker.serving.backends.build_error import BuildError


def quantized(model: nn.Module, quantization: Quantization) -> nn.Module:
    """Returns a copy with quantized linear layers. Raises `BuildError` with what is missing."""
    if not any(isinstance(layer, nn.Linear) for layer in model.modules()):
        raise BuildError("the model has no linear layer to quantize")
    if quantization is Quantization.INT8 and device_of(model).type == "cpu":
        return _int8_on_cpu(model)
    return _by_torchao(model, quantization)


def _int8_on_cpu(model: nn.Module) -> nn.Module:
    part: Any = getattr(torch.ao, "quantization", None)
    quantize = getattr(part, "quantize_dynamic", None)
    if quantize is None:
        raise BuildError(f"torch {torch.__version__} has no dynamic quantization")
    with warnings.catch_warnings():
        # torch announces a successor, which is another package.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", UserWarning)
        return quantize(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)


def _by_torchao(model: nn.Module, quantization: Quantization) -> nn.Module:
    if importlib.util.find_spec("torchao") is None:
        raise BuildError(f"{quantization.value} here needs torchao, which is not installed")
    part: Any = importlib.import_module("torchao.quantization")
    name = (
        "Float8DynamicActivationFloat8WeightConfig"
        if quantization is Quantization.FLOAT8
        else "Int8DynamicActivationInt8WeightConfig"
    )
    config = getattr(part, name, None)
    if config is None:
        raise BuildError(f"this torchao has no {name}")
    found = copy.deepcopy(model)
    part.quantize_(found, config())
    return found
