"""Requests and responses of the Open Inference Protocol, with its binary extension.

A message is JSON. With binary data, the tensors' bytes follow the JSON in the order of the tensors,
and the header Inference-Header-Content-Length has the length of the JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.datatypes import DATATYPES, datatype_of
from gpujob_worker.serving.signature import InputError, Signature
from gpujob_worker.serving.tensors import (
    from_bytes,
    from_numbers,
    read_datatype,
    read_shape,
    short,
    to_bytes,
    to_numbers,
)

HEADER_LENGTH = "Inference-Header-Content-Length"
# JSON is parsed in one call, which blocks all other threads of the process.
JSON_BYTES_MAX = 16 * 1024**2
TENSORS_MAX = 64
NAME_CHARACTERS_MAX = 256


@dataclass(frozen=True, slots=True)
class InferRequest:
    """The inputs of one request, and the outputs that it wants: their names, and whether each is
    binary.
    """

    inputs: Tensors
    samples: int
    outputs: Mapping[str, bool]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """A message as sent. `json_bytes` is the value of the header, or None without binary data."""

    data: bytes
    json_bytes: int | None = None


def read_request(data: bytearray, json_length: str | None, signature: Signature) -> InferRequest:
    """Returns the request in a body. Raises `InputError` for an invalid one.

    `json_length` is the value of the header, or None without it.
    """
    json_bytes = _json_bytes(data, json_length)
    message = _parsed(data, json_bytes)
    binary = _Binary(memoryview(data)[json_bytes:])
    inputs = {
        name: _input(name, tensor, binary, signature)
        for name, tensor in _named(message, "inputs").items()
    }
    binary.end()
    samples = signature.samples(inputs)
    return InferRequest(inputs, samples, _outputs(message, signature), _id(message))


def write_response(model: str, request: InferRequest, outputs: Tensors) -> Body:
    """Returns the response to a request. Raises `InputError` if an output has no JSON form."""
    described: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name, is_binary in request.outputs.items():
        tensor = outputs[name]
        entry: dict[str, Any] = {
            "name": name,
            "datatype": datatype_of(tensor.dtype),
            "shape": list(tensor.shape),
        }
        if is_binary:
            parts.append(to_bytes(tensor))
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            entry["data"] = to_numbers(name, tensor)
        described.append(entry)
    message: dict[str, Any] = {"model_name": model, "outputs": described}
    if request.id is not None:
        message["id"] = request.id
    text = json.dumps(message, separators=(",", ":")).encode()
    return Body(b"".join([text, *parts]), len(text) if parts else None)


def metadata(model: str, signature: Signature) -> dict[str, Any]:
    """Returns the model's metadata. The first dimension, -1, counts samples."""
    described = {
        kind: [
            {"name": one.name, "datatype": datatype_of(one.dtype), "shape": [-1, *one.shape]}
            for one in specs
        ]
        for kind, specs in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }
    return {"name": model, "versions": ["1"], "platform": "pytorch", **described}


def check_types(signature: Signature) -> None:
    """Raises `InputError` if an input or output has a type that the protocol does not have."""
    for spec in (*signature.inputs, *signature.outputs):
        if datatype_of(spec.dtype) is None:
            types = ", ".join(str(dtype) for dtype in DATATYPES.values())
            raise InputError(f"{spec.name}: must have one of the types {types}; got {spec.dtype}")


class _Binary:
    """The bytes behind the JSON. Inputs take their parts in order."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, name: str, size: Any) -> memoryview:
        left = len(self._data) - self._at
        if type(size) is not int or not 0 <= size <= left:
            raise InputError(
                f"{name}: binary_data_size must be from 0 to the {left} bytes that are left in the"
                f" body; got {short(size)}"
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def end(self) -> None:
        left = len(self._data) - self._at
        if left:
            raise InputError(
                f"the body has {left} bytes that belong to no input; compare binary_data_size of"
                f" the inputs and {HEADER_LENGTH} with it"
            )


def _json_bytes(data: bytearray, header: str | None) -> int:
    if header is None:
        length = len(data)
    elif header.isascii() and header.isdigit() and len(header) <= 12:
        length = int(header)
    else:
        raise InputError(f"{HEADER_LENGTH} must be a whole number; got {short(header)}")
    if not 0 < length <= len(data):
        what = f"{HEADER_LENGTH} must be from 1 to the {len(data)} bytes of the body"
        raise InputError(f"{what}; got {length}" if header is not None else "the body is empty")
    if length > JSON_BYTES_MAX:
        raise InputError(
            f"the JSON must have at most {JSON_BYTES_MAX} bytes; got {length}. Send large inputs as"
            " binary data"
        )
    return length


def _parsed(data: bytearray, length: int) -> dict[str, Any]:
    try:
        message: Any = json.loads(data[:length])
    except RecursionError:
        raise InputError("the JSON has too many lists within lists") from None
    except ValueError as error:
        raise InputError(f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(message, dict):
        raise InputError("the JSON must be an object with inputs")
    return cast("dict[str, Any]", message)


def _named(message: Mapping[str, Any], field: str) -> dict[str, dict[str, Any]]:
    """Returns the tensors in a field of the message by name."""
    value = message.get(field)
    if not isinstance(value, list) or not value:
        raise InputError(f"{field}: must be a list with at least one tensor; got {short(value)}")
    tensors = cast("list[Any]", value)
    if len(tensors) > TENSORS_MAX:
        raise InputError(f"{field}: must have at most {TENSORS_MAX} tensors; got {len(tensors)}")
    found: dict[str, dict[str, Any]] = {}
    for number, tensor in enumerate(tensors):
        name = cast("dict[str, Any]", tensor).get("name") if isinstance(tensor, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
            text = f"must be an object with a name of 1 to {NAME_CHARACTERS_MAX} characters"
            raise InputError(f"{field}[{number}]: {text}")
        if name in found:
            raise InputError(f"{field}[{number}]: the name {short(name)} is there twice")
        found[name] = cast("dict[str, Any]", tensor)
    return found


def _input(
    name: str, tensor: Mapping[str, Any], binary: _Binary, signature: Signature
) -> torch.Tensor:
    spec = next((one for one in signature.inputs if one.name == name), None)
    if spec is None:
        names = ", ".join(one.name for one in signature.inputs)
        raise InputError(f"inputs must be {names}; got {short(name)}")
    dtype = read_datatype(name, tensor.get("datatype"))
    if dtype != spec.dtype:
        wanted, got = datatype_of(spec.dtype), datatype_of(dtype)
        raise InputError(f"{name}: datatype must be {wanted}; got {got}")
    shape = read_shape(name, tensor.get("shape"))
    parameters = _parameters(name, tensor)
    if "binary_data_size" in parameters:
        if "data" in tensor:
            raise InputError(f"{name}: must have data or binary_data_size; got both")
        return from_bytes(name, binary.take(name, parameters["binary_data_size"]), shape, dtype)
    if "data" not in tensor:
        text = "must have data, or binary_data_size in its parameters"
        raise InputError(f"{name}: {text}")
    return from_numbers(name, tensor["data"], shape, dtype)


def _outputs(message: Mapping[str, Any], signature: Signature) -> dict[str, bool]:
    default = _flag("the request", _parameters("the request", message), "binary_data_output", False)
    names = [one.name for one in signature.outputs]
    if not message.get("outputs"):
        return dict.fromkeys(names, default)
    found: dict[str, bool] = {}
    for name, tensor in _named(message, "outputs").items():
        if name not in names:
            raise InputError(f"outputs must be of {', '.join(names)}; got {short(name)}")
        found[name] = _flag(name, _parameters(name, tensor), "binary_data", default)
    return found


def _parameters(name: str, owner: Mapping[str, Any]) -> Mapping[str, Any]:
    value = owner.get("parameters", {})
    if not isinstance(value, dict):
        raise InputError(f"{name}: parameters must be an object; got {short(value)}")
    return cast("dict[str, Any]", value)


def _flag(name: str, parameters: Mapping[str, Any], field: str, default: bool) -> bool:
    value = parameters.get(field, default)
    if not isinstance(value, bool):
        raise InputError(f"{name}: {field} must be true or false; got {short(value)}")
    return value


def _id(message: Mapping[str, Any]) -> str | None:
    value = message.get("id")
    if value is None or (isinstance(value, str) and len(value) <= NAME_CHARACTERS_MAX):
        return value
    text = f"must be a text of at most {NAME_CHARACTERS_MAX} characters; got {short(value)}"
    raise InputError(f"id: {text}")
