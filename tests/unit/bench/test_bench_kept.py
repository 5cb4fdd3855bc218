"""What was measured stays, whatever ends a run, and only figures of one device are joined."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.shared.kept import Kept, merged, stem_of

ABOUT = {"device": "NVIDIA X", "driver": "1", "versions": {"torch": "2"}, "size": "full"}


def result(date: str, **parts: dict[str, Any]) -> dict[str, Any]:
    return {**ABOUT, "parts": {name: {"date": date, **part} for name, part in parts.items()}}


def test_each_part_is_in_the_file_as_soon_as_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    kept = Kept.open(path, ABOUT)
    kept.begin("alone")
    kept.finish("alone", {"claims": [], "rows": [1]}, 3.21)
    kept.begin("packed")
    # The run is killed here: only the file is left.
    again = Kept.open(path, ABOUT)
    assert again.running == "packed"
    assert again.parts["alone"]["rows"] == [1]
    assert again.parts["alone"]["seconds"] == 3.2
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"


def test_figures_of_another_driver_are_not_continued(tmp_path: Path) -> None:
    kept = Kept.open(tmp_path / "x.json", ABOUT)
    kept.finish("alone", {"rows": []}, 1.0)
    assert Kept.open(kept.path, {**ABOUT, "driver": "2"}).parts == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"parts": 3}'])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.json is no result .*: move it away"):
        Kept.open(path, ABOUT)


def test_of_two_runs_the_newer_part_counts_unless_it_failed() -> None:
    first = result("2026-12-01", alone={"rows": [1]}, packed={"rows": [1]}, law={"rows": [1]})
    failed = {"rows": [2], "failure": "x"}
    second = result("2026-12-02", alone={"rows": [2]}, packed=failed, mps={"rows": [2]})
    for runs in ([first, second], [second, first]):
        found = merged(runs)["parts"]
        assert {name: part["rows"] for name, part in found.items()} == {
            "alone": [2],
            "packed": [1],
            "law": [1],
            "mps": [2],
        }


def test_results_of_two_devices_are_not_joined() -> None:
    with pytest.raises(ValueError, match="device differs: NVIDIA X and NVIDIA Y"):
        merged([result("1"), {**result("1"), "device": "NVIDIA Y"}])
    with pytest.raises(ValueError, match="nothing to merge"):
        merged([])


def test_files_are_named_after_the_device() -> None:
    assert stem_of("NVIDIA H100 80GB HBM3", "shared") == "nvidia-h100-80gb-hbm3-shared"
    assert json.dumps(stem_of("CPU cards", "shared", "quick")) == '"cpu-cards-shared-quick"'
