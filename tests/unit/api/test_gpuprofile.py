"""What `kubectl get gpuprofiles` shows of a workload."""

from dataclasses import replace

import pytest

from gpujob_api.gpuprofile import GPUProfileSpec, GPUProfileSummary, ProfileEntry, summarize
from gpujob_api.quantities import GIB
from gpujob_api.report import Timing
from tests.harness.builders import MODEL, T0

ENTRY = ProfileEntry(MODEL, "2.15.0", 5 * GIB // 2, 20.0, 10, T0)
TIMED = replace(ENTRY, baseline=Timing(2.0, 0), current=Timing(1.3962459950007542, 0))


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (("python", "/app/train.py", "--lr", "1"), "train.py"),
        (("gpujob-run", "--", "python", "train.py"), "train.py"),
        (("sh", "-c", "pip list; exec python src/fit.py --data /d.csv"), "fit.py"),
        (("torchrun", "--nproc-per-node", "2", "-m", "nets.train"), "nets.train"),
        (("/opt/bin/yolo", "detect"), "yolo"),
        ((), "image:1"),
    ],
)
def test_a_workload_without_a_name_is_called_by_its_program(
    command: tuple[str, ...], program: str
) -> None:
    spec = GPUProfileSpec("f", "image:1", command)
    assert summarize(spec, ()) == GPUProfileSummary(program)
    assert summarize(replace(spec, workload="resnet"), ()).workload == "resnet"


def test_the_figures_are_of_the_newest_entry_and_rounded() -> None:
    spec = GPUProfileSpec("f", "image:1", ("python", "a.py"))
    older = replace(ENTRY, gpu_model="other")
    assert summarize(spec, (TIMED, older)) == GPUProfileSummary("a.py", "1.4 s", "2.5 GiB")
    assert summarize(spec, (ENTRY,)) == GPUProfileSummary("a.py", "", "2.5 GiB")
