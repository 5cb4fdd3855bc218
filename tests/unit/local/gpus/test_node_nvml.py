"""A node reads its own GPUs only, in the order of its options."""

from typing import Any

import pynvml
import pytest

from gpujob_local.gpus import node_nvml
from gpujob_local.gpus.driver import driver_environment
from gpujob_operator.agent.nvml import code_of


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's handle of a GPU is its UUID."""
    monkeypatch.setenv(node_nvml.GPUS_VARIABLE, "GPU-7,GPU-2")

    def handle(uuid: str) -> Any:
        return f"handle of {uuid}"

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)


def test_the_nodes_gpus_have_the_first_indices() -> None:
    assert node_nvml.nvmlDeviceGetCount() == 2
    handles = [node_nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
    assert handles == ["handle of GPU-7", "handle of GPU-2"]


def test_another_index_is_an_error_of_nvml() -> None:
    with pytest.raises(pynvml.NVMLError) as error:
        node_nvml.nvmlDeviceGetHandleByIndex(2)
    assert code_of(error.value) == pynvml.NVML_ERROR_INVALID_ARGUMENT


def test_all_else_is_pynvml() -> None:
    assert node_nvml.nvmlDeviceGetUUID is pynvml.nvmlDeviceGetUUID
    with pytest.raises(AttributeError, match="nvmlNone"):
        _ = node_nvml.nvmlNone


def test_processes_get_the_variables_that_lead_to_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/driver")
    monkeypatch.setenv("CUDA_HOME", "")
    monkeypatch.setenv("SECRET", "x")
    found = driver_environment()
    assert found["LD_LIBRARY_PATH"] == "/driver"
    assert not {"CUDA_HOME", "SECRET"} & set(found)
