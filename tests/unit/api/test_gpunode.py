"""A node's GPUs in one line each."""

from gpujob_api.gpunode import GPU, GPUNodeSummary, summarize
from gpujob_api.quantities import GIB


def _gpu(index: int, used_bytes: int, utilization: float, model: str = "H100") -> GPU:
    return GPU(f"GPU-{index}", index, model, 80 * GIB, used_bytes, utilization_percent=utilization)


def test_no_gpus() -> None:
    assert summarize(()) == GPUNodeSummary(gpus="0")


def test_one_gpu() -> None:
    assert summarize([_gpu(0, GIB, 33.4)]) == GPUNodeSummary("1 x H100", "1 GiB of 80 GiB", "33 %")


def test_several_gpus_and_models() -> None:
    gpus = [_gpu(0, GIB, 90.0), _gpu(1, 0, 5.0), _gpu(2, 2 * GIB, 50.0, "L4")]
    assert summarize(gpus) == GPUNodeSummary("2 x H100, 1 x L4", "3 GiB of 240 GiB", "5-90 %")


def test_gpus_that_do_the_same_have_no_range() -> None:
    assert summarize([_gpu(0, 0, 0.2), _gpu(1, 0, 0.0)]).utilization == "0 %"
