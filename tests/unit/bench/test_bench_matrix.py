"""The matrix of kinds of scripts, what its table says was skipped, and the one in the documents."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from bench.hooked import Run, applied, injected, refused
from bench.matrix.kinds import KINDS
from bench.matrix.runs import COLUMNS
from bench.refusals import AS_BELOW, LEGEND_HEAD, REASON_CHARACTERS_MAX, fill_skipped
from bench.table import format_markdown
from gpujob_api.report import Report, WorkerPhase
from tests.harness.repository import ROOT

PAGE = (ROOT / "docs/benchmarks/scripts.md").read_text(encoding="utf-8")


def rows_of(columns: Sequence[str]) -> list[str]:
    """The first cells of the page's table with these columns, as it was printed."""
    head = format_markdown([], columns)
    start = PAGE.index(head) + len(head)
    table = PAGE[start:].partition("\n\n")[0]
    return re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)


def test_the_page_has_a_row_of_every_kind() -> None:
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
    assert (applied(run), refused(run)) == ("-", {})


LINES = (
    "fused optimizer applied: 2.48x (95 % 2.02 to 3.06, 5 pairs); the script skipped: nothing",
    "precision skipped: not faster beyond noise: 0.82x (95 % 0.69 to 0.98, 4 pairs); bfloat16",
    "data loading 2 worker processes, on trial",
    "compile skipped: failed: RuntimeError: applied: to nothing",
)


def test_a_report_says_what_was_applied_and_why_the_rest_was_skipped() -> None:
    report = Report(attempt=1, phase=WorkerPhase.TRAINING, explain=LINES)
    run = Run(0, "", "", report, 1.0)
    assert applied(run) == "fused optimizer"
    assert refused(run) == {
        "precision": "not faster beyond noise: 0.82x (95 % 0.69 to 0.98, 4 pairs); bfloat16",
        "compile": "failed: RuntimeError: applied: to nothing",
    }


GPUS_ONLY = "cuDNN runs on CUDA GPUs; this is cpu"
NO_LIMIT = "memory does not ask for it: no limit"


def rows_with(refusals: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    return [{"kind": name, "refused": reasons} for name, reasons in refusals.items()]


def slower(ratio: float) -> str:
    return f"not faster beyond noise: {ratio}x (95 % 0.1 to 0.9, 4 pairs)"


def test_what_nearly_all_kinds_refuse_is_said_once_and_the_rest_in_its_row() -> None:
    shared = {"autotuning": GPUS_ONLY, "batch split": NO_LIMIT, "offload": NO_LIMIT}
    own = {"autotuning": GPUS_ONLY, "batch split": "2 modules", "checkpointing": "2 modules"}
    rows = rows_with({
        "plain": shared | {"precision": slower(0.8)},
        "shell": shared | {"precision": slower(0.7)},
        "loader": shared | {"precision": slower(0.9)},
        "GAN": own | {"precision": "the script uses autocast itself"},
        "evaluation": {"tuning": "no optimizer of torch made a step"},
        "tool": {},
    })  # fmt: skip
    legend = fill_skipped(rows, "kind")
    assert legend == [
        LEGEND_HEAD,
        "- autotuning: cuDNN runs on CUDA GPUs",
        f"- batch split, offload: {NO_LIMIT} (but: GAN)",
        "- precision: not faster beyond noise: Nx (but: GAN)",
    ]
    assert {row["kind"]: row["skipped"] for row in rows} == {
        "plain": AS_BELOW,
        "shell": AS_BELOW,
        "loader": AS_BELOW,
        "GAN": "batch split, checkpointing: 2 modules; precision: the script uses autocast itself",
        "evaluation": "tuning: no optimizer of torch made a step",
        "tool": "-",
    }


def test_a_refusal_of_half_the_kinds_stays_in_their_rows() -> None:
    several = {"a": "one", "b": "two"}
    rows = rows_with({"1": several, "2": several, "3": {"b": "two", "c": "x"}, "4": {"b": "two"}})
    fill_skipped(rows, "kind")
    assert [row["skipped"] for row in rows] == ["a: one", "a: one", "c: x", "b: two"]


def test_one_kind_alone_shares_nothing_and_long_reasons_are_cut() -> None:
    rows = rows_with({"plain": {"a": "word " * 40, "b": "x | y"}})
    assert fill_skipped(rows, "kind") == []
    long, other = rows[0]["skipped"].split("; ")
    assert len(long) <= len("a: ") + REASON_CHARACTERS_MAX
    assert long.endswith("word ...")
    assert other == "b: x / y", "a bar would end the cell"
