"""On bad ground the run ends with one line that says what is missing, and nothing is started."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.shared import ground
from bench.shared.ground import GroundError
from tests.harness.imitated_nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    ImitatedDriver,
    ImitatedGPU,
    ImitatedProcess,
    build_library,
)
from tests.harness.repository import ROOT

pytestmark = pytest.mark.timeout(120)
GIB = 1024**3
PROBE = """
import sys, pynvml
from bench.shared.ground import GroundError, find_gpu
try:
    print(find_gpu(pynvml, int(sys.argv[1]), sys.argv[2]))
except GroundError as error:
    sys.exit(f"missing: {error}")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library: Path, tmp_path: Path) -> ImitatedDriver:
    """A driver with one GPU that can be shared."""
    return ImitatedDriver(tmp_path, library, [ImitatedGPU(uuid="GPU-0")])


def probed(driver: ImitatedDriver, index: int = 0, cuda: str = "13.2") -> tuple[int, str]:
    """Looks for the GPU as a process does that finds this driver."""
    driver.write()
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(index), cuda],
        cwd=ROOT,
        env=driver.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def test_a_gpu_that_can_be_shared_is_found(driver: ImitatedDriver) -> None:
    code, text = probed(driver)
    assert (code, text[:6]) == (0, "Device")
    assert "uuid='GPU-0'" in text
    assert f"memory_bytes={80 * GIB}" in text


def _not_loaded(driver: ImitatedDriver) -> None:
    driver.answers["nvmlInitWithFlags"] = DRIVER_NOT_LOADED


def _old(driver: ImitatedDriver) -> None:
    driver.version = "470.199.02"


def _old_cuda(driver: ImitatedDriver) -> None:
    driver.version, driver.cuda = "535.54.03", 12_020


def _mig(driver: ImitatedDriver) -> None:
    driver.gpus[0].mig_mode = (1, 1)


def _exclusive(driver: ImitatedDriver) -> None:
    driver.gpus[0].compute_mode = 3


def _used(driver: ImitatedDriver) -> None:
    driver.gpus[0].processes = [ImitatedProcess(4711, 5 * GIB)]


def _hidden_use(driver: ImitatedDriver) -> None:
    driver.gpus[0].memory_used_bytes = 5 * GIB


def _lost(driver: ImitatedDriver) -> None:
    driver.gpus[0].answers["*"] = GPU_IS_LOST


def _none(driver: ImitatedDriver) -> None:
    driver.gpus = []


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (_not_loaded, "NVML does not answer"),
        (_old, "driver 470.199.02 is older than 510: install a newer driver"),
        (_old_cuda, "driver 535.54.03 runs CUDA 12.2, and this torch needs CUDA 13.2"),
        (_mig, "GPU 0 is in MIG mode, and only whole GPUs are shared: nvidia-smi -i 0 -mig 0"),
        (_exclusive, "GPU 0 is in compute mode Exclusive_Process, so two jobs cannot use it"),
        (_used, "another process uses GPU 0 (process 4711): end it"),
        (_hidden_use, "5.0 GiB of GPU 0 are in use by a process that the driver does not show"),
        (_lost, "GPU 0 does not answer NVML"),
        (_none, "the driver shows 0 GPUs, so there is no GPU 0"),
    ],
)
def test_each_lack_is_one_line(
    driver: ImitatedDriver, spoil: Callable[[ImitatedDriver], None], line: str
) -> None:
    spoil(driver)
    code, text = probed(driver)
    assert code == 1
    assert text.startswith(f"missing: {line}"), text
    assert len(text.splitlines()) == 1


def test_the_command_ends_with_that_line_and_keeps_earlier_parts(
    driver: ImitatedDriver, tmp_path: Path
) -> None:
    driver.gpus[0].mig_mode = (1, 1)
    driver.write()
    results = tmp_path / "results"
    results.mkdir()
    kept = results / "nvidia-h100-80gb-hbm3-shared.json"
    kept.write_text(json.dumps({"parts": {"alone": {}}}))
    done = subprocess.run(
        [sys.executable, "-m", "bench.shared_gpu", "--results", str(results)],
        cwd=ROOT,
        env=driver.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("bench.shared_gpu: GPU 0 is in MIG mode"), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert json.loads(kept.read_text()) == {"parts": {"alone": {}}}


def test_missing_packages_are_named() -> None:
    with pytest.raises(GroundError, match="missing Python packages: gpujob_none; install them"):
        ground.check_packages(["json", "gpujob_none"])
    ground.check_packages()


def test_too_little_disk_is_named_with_the_folder() -> None:
    def little(_folder: Path) -> int:
        return GIB

    with pytest.raises(GroundError, match=r"has 1\.0 GiB of free disk and 2\.0 GiB are needed"):
        ground.check_disk(2 * GIB, little)
    ground.check_disk(GIB, little)


def test_the_versions_of_torch_are_read_without_its_import() -> None:
    import torch

    assert ground.torch_versions() == (str(torch.__version__), torch.version.cuda)
