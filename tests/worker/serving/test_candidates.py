"""Which plans are tried, at which sizes, in which order, and what skips one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.serving import BackendName, Batching, Quantization, ServingSettings
from gpujob_api.settings import Precision
from gpujob_worker.serving.choosing.candidates import ordered, plans, sizes, skip_reason
from gpujob_worker.serving.plan import REFERENCE, Plan

pytestmark = pytest.mark.any_torch

EAGER_BFLOAT16 = Plan(BackendName.EAGER, Precision.BFLOAT16)
COMPILE_BFLOAT16 = Plan(BackendName.COMPILE, Precision.BFLOAT16)


def test_on_the_cpu_nothing_that_needs_cuda_is_tried() -> None:
    found = plans(ServingSettings(), cuda=False)
    names = {plan.backend for plan in found}
    assert names == {
        BackendName.EAGER,
        BackendName.COMPILE,
        BackendName.ONNX_RUNTIME,
        BackendName.AOT_INDUCTOR,
    }
    assert {plan.precision for plan in found} == {Precision.FLOAT32, Precision.BFLOAT16}


def test_on_cuda_all_precisions_and_backends_are_tried() -> None:
    found = plans(ServingSettings(), cuda=True)
    assert {plan.backend for plan in found} == set(BackendName) - {
        BackendName.AUTO,
        BackendName.EXTERNAL,
    }
    lower = {plan.precision for plan in found if plan.backend is BackendName.EAGER}
    assert lower == {Precision.TF32, Precision.BFLOAT16, Precision.FLOAT16}
    assert len(found) <= 24


def test_as_written_comes_first_because_it_is_cheapest_to_try() -> None:
    found = plans(ServingSettings(), cuda=True)
    eager = [number for number, plan in enumerate(found) if plan.backend is BackendName.EAGER]
    assert eager == list(range(len(eager)))


def test_every_backend_gets_the_fastest_precision_before_the_next_one() -> None:
    """A measurement has no time for all of them."""
    every = plans(ServingSettings(quantization=Quantization.INT8), cuda=True)
    speeds = {EAGER_BFLOAT16: 1.4, Plan(BackendName.EAGER, Precision.TF32): 0.9}
    found = ordered(every, speeds)
    assert sorted(map(str, found)) == sorted(map(str, every))
    compiled = [plan for plan in found if plan.backend is not BackendName.EAGER]
    full = [plan.precision for plan in compiled if plan.quantization is Quantization.OFF]
    wanted = [Precision.BFLOAT16, Precision.FLOAT32, Precision.TF32, Precision.FLOAT16]
    assert list(dict.fromkeys(full)) == wanted
    assert [plan.backend for plan in compiled[:4]] == [
        BackendName.COMPILE,
        BackendName.CUDA_GRAPH,
        BackendName.ONNX_RUNTIME,
        BackendName.AOT_INDUCTOR,
    ]
    quantized = [plan.quantization is not Quantization.OFF for plan in found]
    assert quantized == sorted(quantized), "quantized ones come last"


def test_without_speeds_the_order_of_the_backends_stays() -> None:
    every = plans(ServingSettings(), cuda=True)
    first = [plan for plan in every if plan.precision is Precision.FLOAT32]
    found = [plan for plan in ordered(every, {}) if plan.precision is Precision.FLOAT32]
    assert found == first


def test_the_settings_limit_the_plans() -> None:
    settings = ServingSettings(backend=BackendName.COMPILE, precision=Precision.BFLOAT16)
    assert plans(settings, cuda=False) == (COMPILE_BFLOAT16,)
    eager = ServingSettings(backend=BackendName.EAGER, precision=Precision.FLOAT32)
    assert plans(eager, cuda=False) == ()


@pytest.mark.parametrize("cuda", [False, True])
def test_weights_are_quantized_only_on_request(cuda: bool) -> None:
    def quantized(quantization: Quantization) -> set[Quantization]:
        found = plans(ServingSettings(quantization=quantization), cuda=cuda)
        return {plan.quantization for plan in found} - {Quantization.OFF}

    assert quantized(Quantization.OFF) == set()
    assert quantized(Quantization.INT8) == {Quantization.INT8}
    float8 = {Quantization.FLOAT8} if cuda else set[Quantization]()
    assert quantized(Quantization.AUTO) == {Quantization.INT8} | float8


@given(st.integers(1, 5000), st.booleans())
def test_sizes_are_powers_of_two_up_to_the_largest(largest: int, cuda: bool) -> None:
    found = sizes(ServingSettings(batching=Batching(max_size=largest)), cuda=cuda)
    assert found[0] == 1
    assert found[-1] == largest
    assert list(found) == sorted(set(found))
    assert all(size & (size - 1) == 0 for size in found[:-1])


def test_without_a_largest_size_the_device_decides() -> None:
    assert sizes(ServingSettings(), cuda=False)[-1] == 64
    assert sizes(ServingSettings(), cuda=True)[-1] == 256


def test_a_precision_that_is_slow_as_written_is_not_compiled() -> None:
    reason = skip_reason(COMPILE_BFLOAT16, {EAGER_BFLOAT16: 0.08})
    assert reason == "skipped: bfloat16 has 0.08 times the speed of float32 as written"
    assert skip_reason(COMPILE_BFLOAT16, {EAGER_BFLOAT16: 0.6}) is None
    assert skip_reason(COMPILE_BFLOAT16, {}) is None
    assert skip_reason(Plan(BackendName.COMPILE), {EAGER_BFLOAT16: 0.08}) is None
    assert skip_reason(EAGER_BFLOAT16, {EAGER_BFLOAT16: 0.08}) is None


def test_a_plan_is_named_in_words() -> None:
    assert str(REFERENCE) == "Eager float32"
    assert str(Plan(BackendName.EAGER, Precision.FLOAT32, Quantization.INT8)) == (
        "Eager float32 int8"
    )
