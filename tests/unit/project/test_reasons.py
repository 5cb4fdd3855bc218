"""The reference of reasons is current, and no reason in the code is left out of it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from gpujob_api.report import FailureClass
from gpujob_operator.decide.lifecycle import untuned
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.pending_reasons import PendingReason
from gpujob_operator.decide.model.reasons import (
    CONDITIONS,
    EVENTS,
    FAILURES,
    PENDING,
    SERVICE_CONDITIONS,
    SERVICE_EVENTS,
    STOPS,
)
from gpujob_operator.decide.model.stop_reasons import STOP_RULES
from gpujob_operator.reasons_page import page
from tests.harness.repository import ROOT

SOURCES = ROOT / "operator" / "src" / "gpujob_operator" / "decide"
TYPES = {
    name: value
    for name, value in vars(conditions).items()
    if isinstance(value, str) and name.isupper() and not name.startswith("_")
}


def test_the_page_is_the_tables() -> None:
    path = ROOT / "docs" / "reference" / "reasons.md"
    assert path.read_text(encoding="utf-8") == page(), "make generate writes it"


def test_each_member_of_the_closed_sets_has_a_meaning() -> None:
    assert set(CONDITIONS) == set(TYPES.values())
    assert set(CONDITIONS[conditions.UNTUNED]) == {
        untuned.NO_REPORTS,
        untuned.NO_STEPS,
        untuned.SKIPPED,
    }
    assert set(PENDING) == set(PendingReason)
    assert set(STOPS) == set(STOP_RULES)
    assert set(FAILURES) == set(FailureClass)


def test_each_reason_that_is_written_stands_in_the_tables() -> None:
    written = [found for path in SOURCES.rglob("*.py") for found in _written(path)]
    assert len(written) > 20, "the sources are read in another way than they are written"
    missing = [
        (kind, reason)
        for kind, reason in written
        if reason not in ((*EVENTS, *SERVICE_EVENTS) if kind == "event" else CONDITIONS[kind])
    ]
    assert missing == []


def test_the_reasons_of_services_stand_in_their_tables() -> None:
    source = (SOURCES / "services" / "status.py").read_text(encoding="utf-8")
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    sets = [call.args for call in calls if ast.unparse(call.func) == "writer.set"]
    given = {one.value for args in sets for one in args[2:3] if isinstance(one, ast.Constant)}
    known = {reason for meanings in SERVICE_CONDITIONS.values() for reason in meanings}
    # The first two are chosen by a condition, the third has a name.
    assert known == given | {"ReplicasStarting", "ReplicasFailing", "RequestsFailing"}


def test_a_reason_without_a_row_is_found(tmp_path: Path) -> None:
    source = tmp_path / "new.py"
    source.write_text('writer.set(conditions.RUNNING, True, "New", "")\nEventNote("New", "")')
    assert list(_written(source)) == [(conditions.RUNNING, "New"), ("event", "New")]


def _written(path: Path) -> Iterator[tuple[str, str]]:
    """Conditions and events with a reason that stands in the call itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called, given = ast.unparse(node.func), node.args
        if called == "EventNote" and isinstance(given[0], ast.Constant):
            yield "event", str(given[0].value)
        for number, argument in enumerate(given[:-2] if called.endswith(".set") else ()):
            # The condition, its value, its reason.
            kind, reason = ast.unparse(argument).partition("conditions.")[2], given[number + 2]
            if kind in TYPES and isinstance(reason, ast.Constant):
                yield TYPES[kind], str(reason.value)
