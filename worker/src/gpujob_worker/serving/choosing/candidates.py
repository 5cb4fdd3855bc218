"""Lists the plans that are worth a measurement, the cheapest first. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from gpujob_api.serving import BackendName, Quantization, ServingSettings
from gpujob_api.settings import Precision
from gpujob_worker.serving.plan import REFERENCE, Plan

SIZE_MAX_CPU, SIZE_MAX_CUDA = 64, 256
# A precision this much slower as written is not compiled either.
SLOW_SHARE = 0.5
_ON_CPU = (Precision.FLOAT32, Precision.BFLOAT16)
_ON_CUDA = (Precision.FLOAT32, Precision.TF32, Precision.BFLOAT16, Precision.FLOAT16)
_BACKENDS = (
    BackendName.EAGER,
    BackendName.COMPILE,
    BackendName.CUDA_GRAPH,
    BackendName.ONNX_RUNTIME,
    BackendName.AOT_INDUCTOR,
    BackendName.TENSOR_RT,
)
_NEEDS_CUDA = (BackendName.CUDA_GRAPH, BackendName.TENSOR_RT)
_QUANTIZED = {
    Quantization.OFF: (),
    Quantization.AUTO: (Quantization.INT8, Quantization.FLOAT8),
    Quantization.INT8: (Quantization.INT8,),
    Quantization.FLOAT8: (Quantization.FLOAT8,),
}


def plans(settings: ServingSettings, *, cuda: bool) -> tuple[Plan, ...]:
    """Returns the plans that the settings allow, without the reference."""
    names = _BACKENDS if settings.backend is BackendName.AUTO else (settings.backend,)
    found = [
        Plan(name, precision)
        for name in names
        for precision in _precisions(settings.precision, name, cuda=cuda)
        if cuda or name not in _NEEDS_CUDA
    ]
    found += list(_quantized(settings, cuda=cuda))
    return tuple(dict.fromkeys(plan for plan in found if plan != REFERENCE))


def sizes(settings: ServingSettings, *, cuda: bool) -> tuple[int, ...]:
    """Returns the batch sizes: powers of two up to the largest, and the largest itself."""
    largest = settings.batching.max_size or (SIZE_MAX_CUDA if cuda else SIZE_MAX_CPU)
    found = [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]
    return tuple(found if found[-1] == largest else [*found, largest])


def ordered(waiting: Sequence[Plan], speeds: Mapping[Plan, float]) -> list[Plan]:
    """Returns the plans in the order in which they are worth their time.

    The model as written comes first, in each precision. Then all backends get the precision that
    was the fastest as written, before any of them gets the next one. A precision that was refused
    as written comes last.
    """

    def worth(plan: Plan) -> tuple[bool, bool, float]:
        is_float32 = plan.precision is Precision.FLOAT32
        speed = 1.0 if is_float32 else speeds.get(Plan(BackendName.EAGER, plan.precision), 0.0)
        is_compiled = plan.backend is not BackendName.EAGER
        return plan.quantization is not Quantization.OFF, is_compiled, -speed

    return sorted(waiting, key=worth)


def skip_reason(plan: Plan, speeds: Mapping[Plan, float]) -> str | None:
    """Returns why a plan is not worth its build, or None. `speeds` are those as fast as written."""
    if plan.backend is BackendName.EAGER or plan.precision is Precision.FLOAT32:
        return None
    speed = speeds.get(Plan(BackendName.EAGER, plan.precision))
    if speed is None or speed >= SLOW_SHARE:
        return None
    return f"skipped: {plan.precision.value} has {speed:.2f} times the speed of float32 as written"


def _precisions(wanted: Precision, name: BackendName, *, cuda: bool) -> tuple[Precision, ...]:
    if wanted is not Precision.AUTO:
        return (wanted,)
    if not cuda:
        # ONNX Runtime computes in float32 on the CPU.
        return _ON_CPU if name is not BackendName.ONNX_RUNTIME else (Precision.FLOAT32,)
    if name is BackendName.TENSOR_RT:
        return (Precision.FLOAT32, Precision.FLOAT16)
    return _ON_CUDA


def _quantized(settings: ServingSettings, *, cuda: bool) -> Iterator[Plan]:
    for quantization in _QUANTIZED[settings.quantization]:
        if quantization is Quantization.FLOAT8 and not cuda:
            continue
        yield Plan(BackendName.EAGER, Precision.FLOAT32, quantization)
        if cuda:
            yield Plan(BackendName.COMPILE, Precision.BFLOAT16, quantization)
