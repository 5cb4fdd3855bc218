"""CONTRIBUTING.md shows the tree that there is, and names files that there are."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.harness.repository import ROOT, tracked

PACKAGES = {
    "operator": ROOT / "operator/src/gpujob_operator",
    "worker": ROOT / "worker/src/gpujob_worker",
    "local": ROOT / "local/src/gpujob_local",
}
DECIDE = PACKAGES["operator"] / "decide"
FOLDER = re.compile(r"([a-z_]+)/(?= |$)")
SHORT_PATH = re.compile(r"`decide/([\w/.]+)`")


def text() -> str:
    return (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def sections() -> Iterator[tuple[str, list[str]]]:
    """Each top folder of the tree with the lines below it."""
    block = re.search(r"## The house\n\n```\n(.*?)```", text(), re.DOTALL)
    assert block is not None
    for part in re.split(r"\n(?=[a-z]+/)", block[1]):
        first, *lines = part.splitlines()
        yield first.partition("/")[0], lines


def folders(package: Path) -> set[str]:
    return {path.parent.name for path in tracked("*/__init__.py") if path.parent.parent == package}


def shown(lines: list[str]) -> set[str]:
    """The folders that lines of the tree name before they say what is in them."""
    heads = [re.split(r"  +(?![a-z_]+/)", line.strip())[0] for line in lines]
    return {name for head in heads for name in FOLDER.findall(head)}


def test_the_tree_shows_every_package_and_no_other() -> None:
    tree = dict(sections())
    for name, package in PACKAGES.items():
        expected = folders(package)
        if name == "operator":
            expected |= folders(DECIDE)
        assert expected, name
        assert shown(tree[name]) == expected, name


def test_the_tree_shows_every_top_folder() -> None:
    top = {path.relative_to(ROOT).parts[0] for path in tracked("*/*")}
    hidden = {name for name in top if name.startswith(".")}
    assert top - hidden - {name for name, _ in sections()} <= {
        "examples",
        "requirements",
        "scripts",
        "tools",
    }


def test_modules_of_the_decisions_that_it_names_exist() -> None:
    named = SHORT_PATH.findall(text())
    assert len(named) >= 10
    assert [name for name in named if not (DECIDE / name).exists()] == []
