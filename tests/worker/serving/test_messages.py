"""Requests are read, and responses written, with and without binary data; errors name the field."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpujob_worker.serving import messages
from gpujob_worker.serving.messages import (
    HEADER_LENGTH,
    TENSORS_MAX,
    InferRequest,
    check_types,
    metadata,
    read_request,
    write_response,
)
from gpujob_worker.serving.signature import InputError, Signature, TensorSpec
from gpujob_worker.serving.tensors import to_bytes

SIGNATURE = Signature(
    inputs=(TensorSpec("a", torch.float32, (2,)), TensorSpec("b", torch.uint8, ())),
    outputs=(TensorSpec("sum", torch.float32, (2,)), TensorSpec("best", torch.int64, ())),
    by_name=True,
)
A = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
B = torch.tensor([5, 6], dtype=torch.uint8)


def tensor(name: str, value: torch.Tensor, **more: Any) -> dict[str, Any]:
    datatype = {torch.float32: "FP32", torch.uint8: "UINT8"}[value.dtype]
    return {"name": name, "datatype": datatype, "shape": list(value.shape), **more}


def valid() -> dict[str, Any]:
    return {"inputs": [tensor("a", A, data=A.tolist()), tensor("b", B, data=B.tolist())]}


def read(message: Any, tail: bytes = b"", length: str | None = None) -> InferRequest:
    text = json.dumps(message).encode()
    header = str(len(text)) if tail and length is None else length
    return read_request(bytearray(text + tail), header, SIGNATURE)


def refused(message: Any, tail: bytes = b"", length: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        read(message, tail, length)
    return str(caught.value)


def test_a_request_in_json() -> None:
    found = read({**valid(), "id": "seven"})
    assert found.id == "seven"
    assert found.samples == 2
    assert torch.equal(found.inputs["a"], A)
    assert torch.equal(found.inputs["b"], B)
    assert found.outputs == {"sum": False, "best": False}


def test_binary_parts_follow_in_the_order_of_the_inputs() -> None:
    sized = [
        tensor("b", B, parameters={"binary_data_size": 2}),
        tensor("a", A, parameters={"binary_data_size": 16}),
    ]
    found = read({"inputs": sized}, to_bytes(B) + to_bytes(A))
    assert torch.equal(found.inputs["a"], A)
    assert torch.equal(found.inputs["b"], B)


def test_json_and_binary_inputs_in_one_request() -> None:
    mixed = [tensor("a", A, data=[1, 2, 3, 4]), tensor("b", B, parameters={"binary_data_size": 2})]
    found = read({"inputs": mixed}, to_bytes(B))
    assert torch.equal(found.inputs["a"], A)
    assert torch.equal(found.inputs["b"], B)


def test_outputs_are_those_that_are_requested() -> None:
    outputs = [{"name": "best", "parameters": {"binary_data": True}}]
    assert read({**valid(), "outputs": outputs}).outputs == {"best": True}
    assert read({**valid(), "outputs": []}).outputs == {"sum": False, "best": False}
    default = {**valid(), "parameters": {"binary_data_output": True}}
    assert read(default).outputs == {"sum": True, "best": True}
    one = [{"name": "sum", "parameters": {"binary_data": False}}, {"name": "best"}]
    assert read({**default, "outputs": one}).outputs == {"sum": False, "best": True}


def changed(number: int, **fields: Any) -> dict[str, Any]:
    message = valid()
    message["inputs"][number] = {**message["inputs"][number], **fields}
    return message


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ([], "the JSON must be an object with inputs"),
        ({}, "inputs: must be a list with at least one tensor; got None"),
        ({"inputs": {}}, "inputs: must be a list"),
        ({"inputs": []}, "inputs: must be a list"),
        ({"inputs": [3]}, "inputs[0]: must be an object with a name"),
        ({"inputs": [{"name": ""}]}, "inputs[0]: must be an object with a name"),
        ({"inputs": [{}] * (TENSORS_MAX + 1)}, "inputs: must have at most 64 tensors; got 65"),
        ({"inputs": [valid()["inputs"][0]] * 2}, "inputs[1]: the name 'a' is there twice"),
        ({"inputs": valid()["inputs"][:1]}, "inputs must be a, b; got a"),
        (changed(0, name="c"), "inputs must be a, b; got 'c'"),
        (changed(0, datatype="FP64"), "a: datatype must be FP32; got FP64"),
        (changed(0, datatype="BYTES"), "a: datatype must be one of"),
        (changed(0, shape=[2, 3]), "a: data must have shape [2, 3]"),
        (changed(0, shape=[4, 1]), "a: data must have shape [4, 1]"),
        (changed(0, shape=[4], data=[1, 2, 3, 4]), "a: must have shape [samples, 2]; got [4]"),
        (changed(1, shape=[1], data=[1]), "all inputs must have the same number of samples"),
        (changed(0, parameters=[]), "a: parameters must be an object; got []"),
        (changed(0, parameters={"binary_data_size": 0}), "a: must have data or binary_data_size"),
        ({"inputs": [tensor("a", A)]}, "a: must have data, or binary_data_size"),
        ({**valid(), "outputs": [{"name": "worst"}]}, "outputs must be of sum, best; got 'worst'"),
        ({**valid(), "outputs": "sum"}, "outputs: must be a list"),
        ({**valid(), "id": 7}, "id: must be a text of at most 256 characters; got 7"),
        (
            {**valid(), "parameters": {"binary_data_output": 1}},
            "the request: binary_data_output must be true or false; got 1",
        ),
    ],
)
def test_errors_name_the_field_and_what_it_must_be(message: Any, text: str) -> None:
    assert refused(message).startswith(text)


def test_no_samples_are_refused() -> None:
    empty = [tensor("a", A[:0], data=[]), tensor("b", B[:0], data=[])]
    assert "at least one sample; got 0" in refused({"inputs": empty})


def test_bytes_that_belong_to_nothing_are_refused() -> None:
    assert "the body has 3 bytes that belong to no input" in refused(valid(), b"abc")


@pytest.mark.parametrize("size", [-1, 17, 10**30, 1.0, True, None, "16"])
def test_sizes_beyond_the_body_are_refused(size: Any) -> None:
    sized = {"inputs": [tensor("a", A, parameters={"binary_data_size": size})]}
    text = refused(sized, bytes(16))
    assert text.startswith("a: binary_data_size must be from 0 to the 16 bytes that are left")


@pytest.mark.parametrize("length", ["", "-1", "1.5", "abc", "²", "9" * 13, "0", "100000"])
def test_lengths_of_the_json_that_are_none(length: str) -> None:
    assert refused(valid(), b"", length).startswith(f"{HEADER_LENGTH} must be")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe\x00",
        b"nothing",
        b'{"inputs": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"inputs": [{"name": "a", "data": ' + b"[" * 50_000 + b"]" * 50_000 + b"}]}",
    ],
)
def test_bodies_that_are_not_json(body: bytes) -> None:
    with pytest.raises(InputError, match=r"the body is not JSON|too many lists within lists"):
        read_request(bytearray(body), None, SIGNATURE)


def test_an_empty_body() -> None:
    with pytest.raises(InputError, match="the body is empty"):
        read_request(bytearray(), None, SIGNATURE)


def test_large_json_is_refused_with_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "JSON_BYTES_MAX", 10)
    assert "at most 10 bytes" in refused(valid())
    assert "binary data" in refused(valid())


@given(st.binary(max_size=200), st.none() | st.integers(0, 250).map(str))
def test_any_bytes_are_refused_by_an_input_error(body: bytes, length: str | None) -> None:
    with pytest.raises(InputError):
        read_request(bytearray(body), length, SIGNATURE)


def answered(**binary: bool) -> tuple[dict[str, Any], bytes, int | None]:
    request = InferRequest({}, 2, binary, "seven")
    best = torch.tensor([1, 0])
    body = write_response("m", request, {"sum": A, "best": best, "unasked": A})
    length = body.json_bytes if body.json_bytes is not None else len(body.data)
    return json.loads(body.data[:length]), body.data[length:], body.json_bytes


def test_a_response_in_json() -> None:
    message, tail, length = answered(sum=False, best=False)
    assert (message["model_name"], message["id"]) == ("m", "seven")
    first = {"name": "sum", "datatype": "FP32", "shape": [2, 2], "data": [1.0, 2.0, 3.0, 4.0]}
    second = {"name": "best", "datatype": "INT64", "shape": [2], "data": [1, 0]}
    assert message["outputs"] == [first, second]
    assert (tail, length) == (b"", None)


def test_a_response_with_a_binary_output() -> None:
    message, tail, length = answered(best=False, sum=True)
    assert message["outputs"][0]["data"] == [1, 0]
    assert message["outputs"][1]["parameters"] == {"binary_data_size": 16}
    assert "data" not in message["outputs"][1]
    assert tail == to_bytes(A)
    assert length is not None


def test_metadata_has_the_samples_as_minus_one() -> None:
    found = metadata("m", SIGNATURE)
    assert found["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, 2]}
    assert found["outputs"][1] == {"name": "best", "datatype": "INT64", "shape": [-1]}


def test_types_that_the_protocol_lacks_are_refused_at_the_start() -> None:
    check_types(SIGNATURE)
    other = Signature(SIGNATURE.inputs, (TensorSpec("wave", torch.complex64, ()),), by_name=True)
    with pytest.raises(InputError, match=r"wave: must have one of the types torch.bool, .*complex"):
        check_types(other)
