"""No message advises an edit that the API server refuses."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpujob_api.short_form import SHORT_FIELDS
from tests.harness.repository import ROOT

SOURCES = ("api", "cli", "operator", "worker")
JOB_CRD = ROOT / "crds" / "gpujob.dev_gpujobs.yaml"
ADVICE = (
    r"\b(?:set|change|correct|edit|raise|increase|lower|reduce|keep|mount|add|remove|drop|request"
    r"|ask for|(?:name|give|use) (?:an?|the|another))\b"
)
NEW_JOB = re.compile(r"create (?:the job again|a new GPUJob)")


def test_no_message_advises_to_edit_an_immutable_field() -> None:
    found = [
        (path.relative_to(ROOT).as_posix(), clause)
        for source in SOURCES
        for path in sorted((ROOT / source / "src").rglob("*.py"))
        for text in _texts(path)
        for clause in _impossible(text)
    ]
    assert found == []


def test_the_rules_of_the_crd_are_read() -> None:
    assert set(_immutable(_spec(), "spec")) == {
        "spec.workload",
        "spec.workers",
        "spec.gpusPerWorker",
        "spec.gpu.models",
        "spec.optimize.batchSize.total",
        "spec.checkpoint.volumeClaimName",
        "spec.template",
        *(f"spec.{name}" for name in SHORT_FIELDS),
    }


@pytest.mark.parametrize(
    ("text", "is_impossible"),
    [
        ("name a claim with ReadWriteMany, or set spec.workers: 1", True),
        ("lost; set `checkpoint.volumeClaimName`", True),
        ("lost: create a new GPUJob; change the template's securityContext", True),
        ("lower batchSize.total", True),
        ("create the job again with checkpoint.volumeClaimName set", False),
        ("set spec.queue back to a; the template is valid", False),
    ],
)
def test_such_advice_is_found(text: str, is_impossible: bool, tmp_path: Path) -> None:
    source = tmp_path / "new.py"
    source.write_text(f'"""set spec.workers: 1"""\ntext = f"{{job}}: " {text!r}')
    (message,) = _texts(source)
    assert bool(_impossible(message)) is is_impossible


def _impossible(text: str) -> list[str]:
    """Returns the clauses that advise an edit of an immutable field."""
    clauses = [clause.strip() for clause in text.split(";")]
    return [one for one in clauses if _advice().search(one) and not NEW_JOB.search(one)]


@cache
def _advice() -> re.Pattern[str]:
    return re.compile(rf"{ADVICE}.*?(?:{'|'.join(_spellings())})", re.DOTALL)


def _spellings() -> Iterator[str]:
    """Yields how messages name the immutable fields, as patterns.

    A short name such as workers is also an ordinary word, and counts with a dot or a value.
    """
    yield r"\bthe template\b"
    for field in _immutable(_spec(), "spec"):
        *_, parent, name = field.split(".")
        yield rf"\b{parent}\.{name}\b"
        yield rf"\b{name}\b" if name != name.lower() else rf"\b{name}: "


def _spec() -> Mapping[str, Any]:
    (version,) = yaml.safe_load(JOB_CRD.read_text(encoding="utf-8"))["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]


def _immutable(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if rule["message"].startswith("cannot be changed"):
            yield path + rule.get("fieldPath", "")
    for name, field in schema.get("properties", {}).items():
        yield from _immutable(field, f"{path}.{name}")


def _texts(path: Path) -> Iterator[str]:
    """Yields the texts of a module but its docstrings. A placeholder of an f-string is left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr | ast.JoinedStr)
        for part in ast.iter_child_nodes(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [one.value for one in node.values if isinstance(one, ast.Constant)]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inner:
            yield node.value
