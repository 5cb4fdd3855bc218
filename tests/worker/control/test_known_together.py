"""Settings of an earlier run, in processes under DistributedDataParallel: in all or in none."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.data_parallel import said, train

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("size", [2, 4])
def test_settings_of_an_earlier_run_are_in_force_in_all_or_in_none(
    tmp_path: Path, size: int
) -> None:
    """In the second process the script chooses a type itself: ours is then applied in none."""
    known = {"precision": "bfloat16", "fusedOptimizer": True}
    _, reports = train(tmp_path / "all", steps=14, size=size, tuned=known)
    for report in reports:
        assert (report["tuned"]["precision"], report["tuned"]["fusedOptimizer"]) == (
            "bfloat16",
            True,
        )
    _, reports = train(tmp_path / "none", "autocast", steps=14, size=size, tuned=known)
    for report in reports:
        assert (report["tuned"]["precision"], report["tuned"]["fusedOptimizer"]) == (
            "float32",
            True,
        )


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("known", [None, {"precision": "bfloat16", "fusedOptimizer": True}])
def test_a_call_of_one_process_before_the_wrapper_decides_nothing(
    rank: int, known: dict[str, Any] | None, tmp_path: Path
) -> None:
    """As for a summary of the model, once its optimizer is made."""
    settings: dict[str, Any] = {
        "precision": "bfloat16",
        **({"tuned": known} if known is not None else {}),
    }
    _, reports = train(tmp_path, f"before {rank}", steps=14, **settings)
    for text, report in zip(said(reports), reports, strict=True):
        assert "2 processes decided together; the same in all" in text
        assert report["tuned"]["precision"] == "bfloat16"
        # What is not known is measured, which may come out either way.
        expected = known is not None or reports[0]["tuned"]["fusedOptimizer"]
        assert report["tuned"]["fusedOptimizer"] == expected


@pytest.mark.parametrize("what", ["inside", "part"])
def test_a_call_of_one_process_alone_decides_nothing(what: str, tmp_path: Path) -> None:
    """As for a summary of the model, past its wrapper."""
    known = {"precision": "bfloat16", "fusedOptimizer": True}
    _, reports = train(tmp_path, what, steps=14, tuned=known)
    for text, report in zip(said(reports), reports, strict=True):
        assert "2 processes decided together; the same in all" in text
        assert report["tuned"]["precision"] == "bfloat16"
        assert report["tuned"]["fusedOptimizer"]
