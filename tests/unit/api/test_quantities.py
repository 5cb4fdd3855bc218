"""Memory as people write it, and the identity of GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.codec import FieldError
from gpujob_api.quantities import (
    AMOUNT_MAX,
    FLEET_MEMORY_BYTES_MAX,
    GIB,
    MEMORY_BYTES_MAX,
    MIB,
    FleetMemory,
    Memory,
    format_duration,
    format_memory,
    format_ratio,
    is_gpu_uuid,
    quantity,
)


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("250m", 250),
        ("1", 1000),
        (2, 2000),
        (0.25, 250),
        ("+1.5", 1500),
        ("1.0001", 1001),
        ("1Ki", 1_024_000),
        ("1.5Gi", 1536 * 1024**2 * 1000),
        ("1k", 1_000_000),
        ("3T", 3 * 10**15),
        ("1e3", 1_000_000),
        ("1E-3", 1),
        ("1P", 10**18),
        ("9E", AMOUNT_MAX),
        ("100n", 1),
        (".5", 500),
        ("1.", 1000),
        (None, 0),
    ],
)
def test_any_quantity_is_read_exactly_and_rounded_up(text: object, thousandths: int) -> None:
    assert quantity(text, 1000) == thousandths


UNREADABLE: list[object] = [
    *("", "x", ".", "+", "-1", "1KI", "1 Gi", "1e", "1e100", "9" * 40),
    *(True, -1, 10**400, 1e300, float("nan"), float("inf"), [], {}),
]


@pytest.mark.parametrize("value", UNREADABLE)
def test_an_amount_that_cannot_be_read_is_no_amount(value: object) -> None:
    assert quantity(value) is None


@pytest.mark.parametrize(
    ("text", "amount_bytes"),
    [
        ("20Gi", 20 * GIB),
        ("512Mi", 512 * MIB),
        ("1.5G", 1_500_000_000),
        ("0.5Ki", 512),
        ("1k", 1000),
        ("16Ti", MEMORY_BYTES_MAX),
        ("0.000001k", 1),  # rounded up, as Kubernetes does
        (7, 7),
        ("007", 7),
    ],
)
def test_quantities_are_read_exactly(text: object, amount_bytes: int) -> None:
    assert Memory.from_json(text, "memory").bytes == amount_bytes


NO_QUANTITIES: list[object] = [
    *("16GB", "1e308", "NaN", "inf", "", "-1Gi", "+1Gi", "1 Gi", "1Gi\n", ".5Gi", "1.Gi", "5E"),
    *("0x10", "\u0663Gi", "1" * 18, True, 1.5, float("nan"), None, [], {}, "1m", "1Pi"),
]


@pytest.mark.parametrize("text", NO_QUANTITIES)
def test_what_is_no_quantity_is_refused_with_the_field(text: object) -> None:
    with pytest.raises(FieldError, match="such as 20Gi") as caught:
        Memory.from_json(text, "spec.gpu.memory")
    assert caught.value.field == "spec.gpu.memory"


@pytest.mark.parametrize("text", ["0", 0, "0.0Gi", "17Ti", "16.1Ti", 2**63, -1, -(2**70)])
def test_absurd_amounts_are_refused(text: object) -> None:
    with pytest.raises(FieldError):
        Memory.from_json(text, "memory")


def test_a_queue_may_have_none_and_more_than_one_gpu_has() -> None:
    assert FleetMemory.from_json("0", "gpuMemory").bytes == 0
    assert FleetMemory.from_json("16384Ti", "gpuMemory").bytes == FLEET_MEMORY_BYTES_MAX
    assert FleetMemory.from_json(FLEET_MEMORY_BYTES_MAX, "gpuMemory").bytes == 16 * 1024**5
    with pytest.raises(FieldError, match="16384Ti"):
        FleetMemory.from_json("16385Ti", "gpuMemory")


@given(st.integers(1, MEMORY_BYTES_MAX))
def test_every_amount_survives(amount_bytes: int) -> None:
    assert Memory.from_json(Memory(amount_bytes).to_json(), "memory").bytes == amount_bytes


@given(
    st.integers(0, 10**15),
    st.integers(0, 999_999),
    st.sampled_from(["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]),
)
def test_reading_agrees_with_exact_arithmetic(whole: int, millionths: int, suffix: str) -> None:
    sizes = {"": 1, "k": 1000, "M": 10**6, "G": 10**9, "T": 10**12}
    sizes |= {"Ki": 1024, "Mi": MIB, "Gi": GIB, "Ti": 1024**4}
    exact, remainder = divmod((whole * 10**6 + millionths) * sizes[suffix], 10**6)
    expected = exact + (remainder > 0)
    text = f"{whole}.{millionths:06d}{suffix}"
    if 1 <= expected <= MEMORY_BYTES_MAX:
        assert Memory.from_json(text, "memory").bytes == expected
    else:
        with pytest.raises(FieldError):
            Memory.from_json(text, "memory")


@pytest.mark.parametrize(
    ("amount_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (512 * MIB, "512 MiB"),
        (1_320_702_444, "1.23 GiB"),
        (16 * 1024**4, "16 TiB"),
        # No power of ten.
        (1010 * MIB, "1010 MiB"),
        (1023 * GIB + 512 * MIB, "1024 GiB"),
        (2000 * 1024**4, "2000 TiB"),
        (int(999.4 * MIB), "999 MiB"),
        (-2 * GIB, "-2 GiB"),
    ],
)
def test_memory_for_people(amount_bytes: int, text: str) -> None:
    assert format_memory(amount_bytes) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.4, "1.40"),
        (1.9962, "2.00"),
        (0.9996, "1.00"),
        (0.82, "0.820"),
        (0.0012345, "0.00123"),
        (12.34, "12.3"),
        (123.4, "123"),
        (0.0, "0.00"),
        (float("inf"), "inf"),
    ],
)
def test_ratios_have_three_digits(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text


@pytest.mark.parametrize(
    "uuid", ["GPU-5f1ce0a1-6c5b-0f6a-8b0a-0d8a5a3d1c2b", "MIG-a", "CPU-node-a-0", "GPU-" + "f" * 63]
)
def test_gpus_are_known_by_their_uuid(uuid: str) -> None:
    assert is_gpu_uuid(uuid)


@pytest.mark.parametrize(
    "uuid",
    ["", "GPU-", "GPU--a", "0", "TPU-a", "GPU-a b", "GPU-a\n", "GPU-" + "f" * 64, "GPU-a,GPU-b"],
)
def test_what_is_no_gpu_is_none(uuid: str) -> None:
    assert not is_gpu_uuid(uuid)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.4, "59s"),
        (60, "1m"),
        (3599, "59m"),
        (3600, "1h"),
        (7800, "2h10m"),
        (172_800, "2d"),
        (360_000, "4d4h"),
        (-3, "0s"),
    ],
)
def test_durations_of_columns(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
