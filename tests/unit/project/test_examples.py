"""The examples and the documents' YAML are what the API takes, and name scripts that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest
from tests.harness.repository import ROOT, relative, tracked

EXAMPLES = tracked("examples/*.yaml")


def jobs_in(text: str) -> list[GPUJob]:
    documents: list[Any] = [found for found in yaml.safe_load_all(text) if found]
    return [from_manifest(GPUJob, found) for found in documents if found.get("kind") == "GPUJob"]


@pytest.mark.parametrize("path", EXAMPLES, ids=relative)
def test_an_example_names_a_script_beside_it(path: Path) -> None:
    for job in jobs_in(path.read_text(encoding="utf-8")):
        command = [str(part) for part in job.spec.worker_container()["command"]]
        assert command[:3] == ["gpujob-run", "--", "python"]
        assert (ROOT / "examples" / command[3]).is_file()


def test_there_are_examples() -> None:
    assert [job for path in EXAMPLES for job in jobs_in(path.read_text(encoding="utf-8"))]


def test_the_readmes_job_is_one() -> None:
    blocks = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    (job,) = [job for block in blocks for job in jobs_in(block)]
    command = [str(part) for part in job.spec.worker_container()["command"]]
    assert (ROOT / "examples" / command[-1]).is_file()
    assert job.spec.optimize.batch_size.total == 256
