"""Plans of recorded cycles are still the same, with and without a cache.

Where plans change on purpose: `tests/golden/record.py` says how the sample is renewed.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from gpujob_operator.cycle import plan_to_json
from gpujob_operator.decide.model.plan import Plan, WriteStatus
from gpujob_operator.decide.planner import plan
from tests.golden.compare import difference, differences
from tests.golden.cycles import SUFFIX, GoldenCycle, read_scene

SAMPLE = Path(__file__).parents[1] / "golden" / "sample"
SCENES = sorted(SAMPLE.glob(f"*{SUFFIX}"))


@pytest.mark.parametrize("scene", SCENES, ids=lambda path: path.name.removesuffix(SUFFIX))
def test_plans_are_the_recorded_ones(scene: Path) -> None:
    assert list(differences(scene)) == []


def _first_write(cycles: list[GoldenCycle]) -> tuple[GoldenCycle, Plan, WriteStatus]:
    for cycle in cycles:
        decided = plan(cycle.snapshot, cycle.now)
        for item in decided.items:
            if isinstance(item, WriteStatus):
                return cycle, decided, item
    raise AssertionError("no cycle writes a status")


def test_a_decision_that_changed_is_told_from_a_text_that_changed() -> None:
    cycle, decided, item = _first_write(list(read_scene(SAMPLE / f"gangs{SUFFIX}")))
    summary = replace(item.status.summary, reason="in other words")
    reworded = replace(item, status=replace(item.status, summary=summary))
    moved = replace(item, status=replace(item.status, attempt=item.status.attempt + 1))

    def found(other: WriteStatus, *, with_texts: bool) -> str:
        items = tuple(other if one is item else one for one in decided.items)
        changed = plan_to_json(replace(decided, items=items))
        return difference(cycle, 1, changed, with_texts)

    assert found(item, with_texts=True) == ""
    assert "status.summary.reason was" in found(reworded, with_texts=True)
    assert found(reworded, with_texts=False) == ""
    assert "status.attempt was" in found(moved, with_texts=False)
