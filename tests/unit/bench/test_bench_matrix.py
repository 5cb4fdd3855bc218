"""The matrix of kinds of scripts, and its table in the guide."""

import re
from collections.abc import Sequence

import pytest

from bench.hooked import Run, decided, injected
from bench.matrix.kinds import KINDS
from bench.matrix.runs import COLUMNS
from bench.table import format_markdown
from tests.harness.repository import ROOT

GUIDE = (ROOT / "docs/guides/worker.md").read_text(encoding="utf-8")


def rows_of(columns: Sequence[str]) -> list[str]:
    """The first cells of the guide's table with these columns, as it was printed."""
    head = format_markdown([], columns)
    start = GUIDE.index(head) + len(head)
    table = GUIDE[start:].partition("\n\n")[0]
    return re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)


def test_the_guide_has_a_row_of_every_kind() -> None:
    assert rows_of(COLUMNS) == list(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_a_program(name: str) -> None:
    compile(KINDS[name].source, name, "exec")


def test_a_table_for_a_document_has_a_line_a_row() -> None:
    rows = [{"kind": "a", "step": 1000}, {"kind": "b"}]
    expected = "| kind | step |\n|---|---|\n| a | 1,000 |\n| b | - |"
    assert format_markdown(rows, ("kind", "step")) == expected


def test_a_run_without_a_report_was_not_reached() -> None:
    run = Run(0, "", "", None, 1.0)
    assert injected(run, trains=True) == "no"
    assert injected(run, trains=False) == "no, as it should be"
    assert decided(run) == ("-", "0 items")
