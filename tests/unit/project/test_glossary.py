"""The glossary names one word for each idea, and only things that there are."""

import re
from collections import Counter
from dataclasses import dataclass

import pytest
import yaml

from gpujob_api import meta
from tests.harness.repository import ROOT, tracked
from tests.harness.series import families
from tests.unit.project.test_documents_and_code import code, paths

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
PACKAGES = (ROOT / "operator/src/gpujob_operator", ROOT / "worker/src/gpujob_worker")
ROW = re.compile(r"^\| ([^|`]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
TOKEN = re.compile(r"`([^`]+)`")
TERMS_MIN = 60


@dataclass(frozen=True)
class Row:
    word: str
    meaning: str
    where: str


def rows(text: str) -> list[Row]:
    found = [Row(*(cell.strip() for cell in match)) for match in ROW.findall(text)]
    return [row for row in found if row.word != "word" and not row.word.startswith("---")]


def fields() -> set[str]:
    known: set[str] = set()
    for path in (ROOT / "crds").glob("*.yaml"):
        for version in yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]:
            known |= set(paths(version["schema"]["openAPIV3Schema"]))
    return known


def series() -> set[str]:
    return {one.name + ("_total" if one.type == "counter" else "") for one in families()}


def exists(token: str) -> bool:
    """Whether it is a module or a folder, a field, a metric, a label or taint, or a reason."""
    if token.endswith((".py", "/")):
        return any((package / token).exists() for package in PACKAGES)
    if token.startswith(("spec.", "status.")):
        return token in fields()
    if token.startswith("gpujob_"):
        return token in series()
    if token.startswith("gpujob.dev/"):
        return token in vars(meta).values()
    return re.fullmatch(r"[A-Z][A-Za-z]+", token) is not None and f'"{token}"' in code()


def wrong(text: str) -> list[str]:
    return [
        f"{row.word}: {token}"
        for row in rows(text)
        for token in TOKEN.findall(row.where)
        if not exists(token)
    ]


def test_what_the_glossary_names_exists() -> None:
    assert wrong(GLOSSARY.read_text(encoding="utf-8")) == []


def test_every_word_is_defined_once_and_says_where_it_appears() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    found = rows(text)
    assert len(found) == len(re.findall(r"^\| (?!word |---)", text, re.MULTILINE)), "odd rows"
    assert len(found) >= TERMS_MIN
    assert [word for word, n in Counter(row.word for row in found).items() if n > 1] == []
    assert [row.word for row in found if not row.meaning.endswith(".")] == []
    assert [row.word for row in found if not TOKEN.findall(row.where)] == []


@pytest.mark.parametrize(
    "token",
    [
        "decide/placement/board.py",
        "decide/rooms/",
        "spec.card",
        "gpujob_card_bytes",
        "gpujob.dev/card",
        "MadeRoom",
        "some words",
    ],
)
def test_what_does_not_exist_is_found(token: str) -> None:
    assert wrong(f"| word | meaning | where |\n| GPU | A GPU. | `{token}` |\n")


def test_the_glossary_and_the_walkthrough_are_linked() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in ("docs/reference/glossary.md", "docs/design/walkthrough.md"):
        assert ROOT / name in tracked("docs/*.md"), name
        assert f"]({name})" in readme, name
        assert f"]({name})" in contributing, name
