"""The datatypes of the Open Inference Protocol and torch's types."""

import torch

# FP16 and BF16 are in binary data only by the protocol, because JSON has no such numbers. FP16 is
# read and written as JSON too, because each of its values is exact there.
DATATYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}


def datatype_of(dtype: torch.dtype) -> str | None:
    """Returns the protocol's name of a type, or None if it has none."""
    return _NAMES.get(dtype)
