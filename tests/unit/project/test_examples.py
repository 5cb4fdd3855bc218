"""The examples and the documents' YAML are what the API takes, and name scripts that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest
from gpujob_api.optimize import BatchSize, Optimize
from tests.harness.repository import ROOT, relative, tracked

EXAMPLES = tracked("examples/*.yaml")
NOTES = "charts/gpujob/templates/NOTES.txt"


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


def test_the_readmes_job_is_the_first_example() -> None:
    """With its claim: what is shown can be applied as it is."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    example = (ROOT / "examples" / "gpujob.yaml").read_text(encoding="utf-8")
    assert list(yaml.safe_load_all(block)) == list(yaml.safe_load_all(example))


def test_the_first_job_keeps_its_checkpoints_in_a_claim_that_comes_with_it() -> None:
    """It must survive an interruption on any cluster that has a default storage class."""
    text = (ROOT / "examples" / "gpujob.yaml").read_text(encoding="utf-8")
    claim, _ = yaml.safe_load_all(text)
    (job,) = jobs_in(text)
    assert claim["kind"] == "PersistentVolumeClaim"
    assert claim["metadata"] == {"name": job.spec.checkpoint.volume_claim_name}
    assert "storageClassName" not in claim["spec"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]


@pytest.mark.parametrize("name", ["gpujob", "classifier"])
def test_an_example_for_speed_is_not_slowed_by_a_fixed_setting(name: str) -> None:
    (job,) = jobs_in((ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8"))
    batch = BatchSize(total=job.spec.optimize.batch_size.total)
    assert job.spec.optimize == Optimize(batch_size=batch)


def jobs_applied_by(document: str) -> list[str]:
    """The examples with jobs that a guide has the reader apply."""
    text = (ROOT / document).read_text(encoding="utf-8")
    applied = [one for one in re.findall(r"kubectl apply (.*)", text) if "examples/" in one]
    return [found for one in applied for found in re.findall(r"-f (examples/[\w/.-]+)", one)]


@pytest.mark.parametrize(
    "document", ["README.md", "docs/guides/quickstart.md", "docs/guides/kind.md", NOTES]
)
def test_the_job_that_a_newcomer_is_shown_first_has_a_claim(document: str) -> None:
    first = jobs_applied_by(document)[0]
    (job,) = jobs_in((ROOT / first).read_text(encoding="utf-8"))
    assert job.spec.checkpoint.volume_claim_name is not None
