"""Tensors survive both forms of the protocol, and whatever does not fit is refused by name."""

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_worker.serving.datatypes import DATATYPES, datatype_of
from gpujob_worker.serving.signature import InputError
from gpujob_worker.serving.tensors import (
    DIMENSION_MAX,
    DIMENSIONS_MAX,
    from_bytes,
    from_numbers,
    read_datatype,
    read_shape,
    short,
    to_bytes,
    to_numbers,
)

SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=4)
TYPES = st.sampled_from(list(DATATYPES.values()))


def random_bits(shape: list[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bits, so also NaN, infinities and the limits of integers."""
    generator = torch.Generator().manual_seed(seed)
    size = math.prod(shape) * dtype.itemsize
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    bits = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    alike = (left.dtype, left.shape) == (right.dtype, right.shape)
    return alike and to_bytes(left) == to_bytes(right)


@given(SHAPES, TYPES, st.integers(0, 1000), st.integers(0, 7))
def test_bytes_keep_every_bit_at_any_position_of_a_body(
    shape: list[int], dtype: torch.dtype, seed: int, offset: int
) -> None:
    tensor = random_bits(shape, dtype, seed)
    body = bytearray(offset) + to_bytes(tensor)
    found = from_bytes("x", memoryview(body)[offset:], tuple(shape), dtype)
    assert same_bits(found, tensor)
    body[:] = bytes(len(body))
    assert same_bits(found, tensor), "the tensor must not depend on the body"


@given(SHAPES, TYPES, st.integers(0, 1000), st.booleans())
def test_numbers_keep_every_value_flat_and_nested(
    shape: list[int], dtype: torch.dtype, seed: int, nested: bool
) -> None:
    if dtype is torch.bfloat16:
        return
    tensor = random_bits(shape, dtype, seed)
    data = tensor.tolist() if nested else to_numbers("x", tensor)
    found = from_numbers("x", json.loads(json.dumps(data)), tuple(shape), dtype)
    assert found.dtype == dtype
    assert list(found.shape) == shape
    if dtype.is_floating_point:
        assert torch.equal(found.isnan(), tensor.isnan())
        found, tensor = found.nan_to_num(7.0), tensor.nan_to_num(7.0)
    assert found.tolist() == tensor.tolist()


def test_outputs_that_are_views_are_written_in_row_major_order() -> None:
    tensor = torch.arange(6, dtype=torch.int32).reshape(2, 3).T
    assert to_numbers("x", tensor) == [0, 3, 1, 4, 2, 5]
    found = from_bytes("x", memoryview(to_bytes(tensor)), (3, 2), torch.int32)
    assert torch.equal(found, tensor)


def test_bytes_of_bool_other_than_0_and_1_are_true() -> None:
    found = from_bytes("x", memoryview(bytes([0, 1, 2, 255])), (4,), torch.bool)
    assert found.tolist() == [False, True, True, True]
    assert found.view(torch.uint8).tolist() == [0, 1, 1, 1]


def test_whole_numbers_are_numbers_to_a_float_input() -> None:
    assert from_numbers("x", [1, 2], (2,), torch.float32).tolist() == [1.0, 2.0]
    found = from_numbers("x", [1, 2**64 - 1], (2,), torch.uint64)
    assert found.tolist() == [1, 2**64 - 1]


def test_nan_and_infinity_pass() -> None:
    found = from_numbers("x", json.loads("[NaN, Infinity, -Infinity]"), (3,), torch.float16)
    assert found.isnan().tolist() == [True, False, False]
    assert found[1:].tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("data", "shape", "dtype", "message"),
    [
        ("1", (1,), torch.float32, "x: data must be a list; got '1'"),
        ([1.0, 2.0], (3,), torch.float32, r"x: data must have shape \[3\].* got 2 values"),
        ([[1.0], [2.0]], (1, 2), torch.float32, r"x: .*shape \[1, 2\].*got \[2, 1\]"),
        ([[1.0], [2.0, 3.0]], (3,), torch.float32, "x: all lists in data must have the same"),
        ([1.0, "a"], (2,), torch.float32, "x: data of type FP32 must be numbers"),
        ([1.0, None], (2,), torch.float32, "x: data of type FP32 must be numbers"),
        ([{}], (1,), torch.float32, "x: data of type FP32 must be numbers"),
        ([True], (1,), torch.float32, "x: data of type FP32 must be numbers"),
        ([10**400], (1,), torch.float64, "x: data of type FP64 must be numbers"),
        ([1e39], (1,), torch.float32, "x: data of type FP32 has a number beyond its range"),
        ([70000], (1,), torch.float16, "x: data of type FP16 has a number beyond its range"),
        ([1.5], (1,), torch.uint8, "x: data of type UINT8 must be whole numbers"),
        ([256], (1,), torch.uint8, "x: data of type UINT8 must be from 0 to 255; got 256"),
        ([-1, 3], (2,), torch.uint8, "x: data of type UINT8 must be from 0 to 255; got -1"),
        ([2**63], (1,), torch.int64, "x: data of type INT64 must be from"),
        ([2**64], (1,), torch.uint64, "x: data of type UINT64 must be from 0 to .*; got 18446744"),
        ([1, 1.5], (2,), torch.uint64, "x: data of type UINT64 must be whole numbers"),
        ([math.nan], (1,), torch.int32, "x: data of type INT32 must be whole numbers"),
        ([1], (1,), torch.bool, "x: data of type BOOL must be true or false"),
        ([0.0], (1,), torch.bfloat16, "x: BF16 has no JSON form; send it as binary data"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    data: Any, shape: tuple[int, ...], dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        from_numbers("x", data, shape, dtype)


def test_lists_deeper_than_arrays_are_refused() -> None:
    data: Any = [1.0]
    for _ in range(100):
        data = [data]
    with pytest.raises(InputError, match="x: "):
        from_numbers("x", data, (1,), torch.float32)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


@settings(max_examples=300)
@given(JSON, SHAPES, TYPES)
def test_any_json_is_a_tensor_of_the_shape_or_an_error_with_the_name(
    data: Any, shape: list[int], dtype: torch.dtype
) -> None:
    message = "x: "
    try:
        found = from_numbers("x", data, tuple(shape), dtype)
        assert (list(found.shape), found.dtype) == (shape, dtype)
    except InputError as error:
        message = str(error)
    assert message.startswith("x: ")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "x: shape must be a list of whole numbers; got None"),
        ("3", "x: shape must be a list"),
        ([1.0], "x: each size in shape must be a whole number from 0 to .*; got 1.0"),
        ([True], "x: each size .* got True"),
        ([-1], "x: each size .* got -1"),
        ([DIMENSION_MAX + 1], "x: each size"),
        ([1] * (DIMENSIONS_MAX + 1), "x: shape must have at most 16 dimensions; got 17"),
    ],
)
def test_shapes_that_are_none_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_shape("x", value)


def test_a_shape_is_a_tuple() -> None:
    assert read_shape("x", [0, 3, DIMENSION_MAX]) == (0, 3, DIMENSION_MAX)


def test_bytes_of_another_length_are_refused_with_both_lengths() -> None:
    with pytest.raises(InputError, match=r"x: .*\[2\] and type FP32 must have 8 bytes; got 7"):
        from_bytes("x", memoryview(bytes(7)), (2,), torch.float32)
    with pytest.raises(InputError, match="must have 9223372028264841218 bytes; got 4"):
        from_bytes("x", memoryview(bytes(4)), (DIMENSION_MAX, DIMENSION_MAX), torch.uint16)


@pytest.mark.parametrize("value", ["BYTES", "fp32", "", None, 3, ["FP32"]])
def test_unknown_datatypes_are_refused_with_the_known_ones(value: Any) -> None:
    with pytest.raises(InputError, match=r"x: datatype must be one of BOOL, .*FP64; got"):
        read_datatype("x", value)


def test_every_datatype_has_one_name() -> None:
    assert [datatype_of(read_datatype("x", name)) for name in DATATYPES] == list(DATATYPES)
    assert datatype_of(torch.complex64) is None


def test_a_bfloat16_output_has_no_json_form() -> None:
    with pytest.raises(InputError, match=r'y: BF16 has no JSON form; .*"binary_data": true'):
        to_numbers("y", torch.zeros(1, dtype=torch.bfloat16))


def test_long_values_are_cut_in_messages() -> None:
    assert len(short("a" * 1000)) == 80
    assert short(3) == "3"
