"""docs/threat-model.md names, for each attack, the test in which it is refused or what is open.

That the named tests exist is asked of all documents (test_project_files).
"""

import re

from tests.harness.repository import ROOT

ATTACKS_MIN = 12
TEST = re.compile(r"`tests/[a-z0-9_/]+\.py::test_[a-z0-9_]+`")


def threats() -> list[list[str]]:
    text = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    _, _, table = text.partition("## Threats")
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[1:]]


def test_every_threat_has_four_cells() -> None:
    assert [row[0] for row in threats() if len(row) != 4] == []


def test_at_least_twelve_attacks_are_refused_in_a_test() -> None:
    assert len([row for row in threats() if TEST.search(row[2])]) >= ATTACKS_MIN


def test_a_threat_that_no_test_refuses_says_what_is_open() -> None:
    assert [row[0] for row in threats() if not TEST.search(row[2]) and not row[3]] == []


def test_what_a_value_opens_is_told() -> None:
    """Each policy's value is named beside what its absence lets in."""
    left_open = " ".join(row[3] for row in threats())
    for value in (
        *("jobCreators", "serviceAccounts", "podSecurity", "tokens", "priorityClasses"),
        *("podOwnership", "operatorScope"),
    ):
        assert f"`admissionPolicies.{value}=false`" in left_open
