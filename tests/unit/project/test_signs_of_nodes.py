"""The page about nodes has every row of the code's tables, and no others."""

import re

from gpujob_operator.decide.model.notices import CONDITION_ROWS, LABEL_ROWS, TAINT_ROWS
from gpujob_operator.decide.model.pod_template import SPOT_TOLERATIONS
from gpujob_operator.read.spot_labels import SPOT_LABELS
from tests.harness.repository import ROOT

PAGE = (ROOT / "docs/reference/nodes.md").read_text()


def _section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_labels_are_those_of_the_code() -> None:
    section = _section("Labels that mean spot")
    rows = {
        cells[1].strip(" `"): set(re.findall("`([^`]+)`", cells[2])) or None
        for cells in (line.split("|") for line in section.splitlines() if line.startswith("| `"))
    }
    assert rows == {key: set(values) if values else None for key, values in SPOT_LABELS.items()}
    tolerated = section.partition("taints of theirs:")[2]
    assert set(re.findall("`([^`]+)`", tolerated)) == {one["key"] for one in SPOT_TOLERATIONS}


def test_the_signs_are_those_of_the_code() -> None:
    section = _section("Signs")
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    for row in TAINT_ROWS:
        (line,) = [line for line in lines if f"taint `{row.key}`" in line]
        assert f"| {row.kind.name.lower()} |" in line
        for seconds in (row.lead_seconds, row.spot_lead_seconds):
            assert seconds is None or f"{seconds:.0f} s" in line
    for condition in CONDITION_ROWS:
        found = [line for line in lines if f"condition `{condition.type}`" in line]
        (line,) = [line for line in found if f"| {condition.kind.name.lower()} |" in line]
        assert all(part.split()[0] in line for part in condition.message)
        assert condition.lead_seconds is None or f"| {condition.lead_seconds:.0f} s |" in line
    for label in LABEL_ROWS:
        (line,) = [line for line in lines if f"label `{label.key}`" in line]
        assert label.values <= set(re.findall("`([^`]+)`", line))
    taints = set(re.findall(r"^\| taint `([^`]+)`", section, re.MULTILINE))
    assert taints == {row.key for row in TAINT_ROWS}
