"""Mutants fit the sources as they are, and the command says truly which ones are caught.

`python -m tests.mutants` runs all of them; here is a sample.
"""

from collections import Counter
from collections.abc import Generator
from dataclasses import replace

import pytest

from tests.harness.repository import ROOT
from tests.mutants.__main__ import MUTANTS, main
from tests.mutants.mutant import Mutant
from tests.mutants.tree import Tree

SAMPLE = (
    "one job's errors close a GPU to all",
    "another holder's Lease is taken at once",
    "an old event undoes a newer state",
)
AREAS = {"decide", "act", "observe", "handlers", "worker"}


@pytest.fixture(scope="module")
def tree() -> Generator[Tree]:
    with Tree.copied(ROOT) as copied:
        yield copied


def named(name: str) -> Mutant:
    return next(mutant for mutant in MUTANTS if mutant.name == name)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_fits_the_sources(mutant: Mutant) -> None:
    mutant.fits(ROOT)


def test_every_part_has_mutants_of_its_own() -> None:
    areas = Counter(mutant.area for mutant in MUTANTS)
    assert areas.keys() >= AREAS
    assert min(areas[area] for area in AREAS) >= 8
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_that_no_longer_fits_is_said() -> None:
    one = named(SAMPLE[0])
    with pytest.raises(ValueError, match="has its text 0 times"):
        replace(one, old="what is nowhere").fits(ROOT)
    with pytest.raises(ValueError, match="there is no"):
        replace(one, tests=("tests/unit/nowhere.py",)).fits(ROOT)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_is_caught(tree: Tree, name: str) -> None:
    mutant = named(name)
    before = (tree.root / mutant.path).read_text()
    verdict = tree.judge(mutant)
    assert verdict.caught, verdict.by
    assert verdict.by.startswith("test_")
    assert (tree.root / mutant.path).read_text() == before


@pytest.mark.parametrize(
    "new", [f"{named(SAMPLE[0]).old}  # here", "if ("], ids=["no change", "an import error"]
)
def test_what_proves_nothing_is_not_caught(tree: Tree, new: str) -> None:
    """Where no test fails by itself."""
    assert not tree.judge(replace(named(SAMPLE[0]), new=new)).caught


def test_the_command_lists_what_it_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--area", "handlers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(mutant.area == "handlers" for mutant in MUTANTS)
    assert main(["--area", "nowhere"]) == 2
