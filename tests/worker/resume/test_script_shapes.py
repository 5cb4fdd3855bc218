"""A few of the scripts that `python -m tests.worker.resume.shapes` plays by the thousand."""

from pathlib import Path

import pytest

from tests.worker.resume.shapes.play import play
from tests.worker.resume.shapes.scripts import LOOPS, PARTS, script

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("seed", range(12))
def test_a_script_ends_as_it_would_have_or_was_refused_beforehand(
    tmp_path: Path, seed: int
) -> None:
    outcome = play(seed, tmp_path)
    assert outcome.difference is None, outcome
    assert outcome.state in ("Exact", "FromBeginning", "ended"), outcome


def test_the_scripts_are_of_all_shapes() -> None:
    made = [script(seed) for seed in range(300)]
    assert {each.loop for each in made} == set(LOOPS)
    assert {name for each in made for name in each.parts} == {part.name for part in PARTS}


def test_each_script_is_python() -> None:
    for seed in range(300):
        compile(script(seed).text, f"seed {seed}", "exec")
