"""Scripts that are put together by a seed: of all kinds, runnable, and the same each time."""

from collections import Counter
from pathlib import Path

import pytest

from tests.worker.resume.shapes import loops, styles
from tests.worker.resume.shapes.generator import PARTS, generate
from tests.worker.resume.shapes.oracle import differing_files, differing_results
from tests.worker.resume.shapes.runs import Request, Zygote
from tests.worker.resume.shapes.script import bound, indented, named, used
from tests.worker.resume.shapes.state_parts import LIBRARIES

SEEDS = range(600)


def test_a_seed_gives_the_same_script_each_time() -> None:
    assert generate(17) == generate(17)
    assert generate(17).source != generate(18).source


def test_all_of_them_are_python() -> None:
    for seed in SEEDS:
        compile(generate(seed).source, f"seed {seed}", "exec")


def test_each_loop_style_and_part_occurs() -> None:
    shapes = [generate(seed) for seed in SEEDS]
    assert {each.labels["loop"] for each in shapes} == {*loops.EPOCH_KINDS, *loops.STEP_KINDS}
    assert {each.labels["style"] for each in shapes} == set(styles.STYLES)
    counts = Counter(part for each in shapes for part in each.parts)
    assert {name for name in PARTS if counts[name] < 5} == set()


def test_no_script_knows_of_the_worker_or_of_a_stop() -> None:
    for seed in SEEDS:
        # The library of some scripts lies in this checkout, whatever that is called.
        source = generate(seed).source.replace(str(LIBRARIES), "")
        assert "gpujob" not in source
        assert "signal" not in source


@pytest.mark.parametrize("seed", range(1000, 1008))
def test_a_script_ends_the_same_way_twice(zygote: Zygote, tmp_path: Path, seed: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(generate(seed).source)
    one, two = (
        zygote.run(Request(script, tmp_path / name, tmp_path / "results", name))
        for name in ("one", "two")
    )
    assert (one.code, two.code) == (0, 0), one.errors
    assert one.steps is not None
    assert 10 <= one.steps <= 300
    assert differing_results(one.output, two.output) == []
    assert differing_files(tmp_path / "one", tmp_path / "two") == []


def test_names_become_what_a_style_calls_them() -> None:
    text = ["$best, $bad = value, 0", "$bank[i] = 1", "    $step += 1", 'print(f"{$step}")']
    assert used(text) == ["bad", "bank", "best", "step"]
    assert bound(text) == ["bad", "best", "step"]
    assert named(text, "self.")[3] == 'print(f"{self.step}")'
    assert indented(["a", ""], 2) == ["        a", ""]
