"""One word for each idea: what the glossary calls an old word is in no identifier and no text.

The words are those of the glossary's last column. A word with an everyday meaning that a search
cannot tell from the old one is in `EVERYDAY`, a name of the API in `NAMES`, and a place where an
old word is right in `PLACES`, each with the reason. A new row of the glossary counts at once.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.repository import ROOT, relative, tracked
from tests.unit.project.test_glossary import GLOSSARY, rows

SCOPE = [
    path
    for path in tracked(
        *(f"{folder}/*" for folder in ("api", "charts", "cli", "crds", "docs", "examples")),
        *("operator/*", "worker/*", "README.md", "CONTRIBUTING.md"),
    )
    if path.suffix in {".md", ".py", ".tpl", ".txt", ".yaml"} and path != GLOSSARY
]

EVERYDAY = {
    "account": "a service account",
    "alike": "two models of the same shape",
    "alone": "without co-tenants, as in aloneStepSeconds",
    "as written": "a script without changes",
    "claim": "a PersistentVolumeClaim; what a test or the demo claims",
    "device": "torch's device; the device plugin",
    "end": "the last part of anything",
    "family": "metrics come in families",
    "fill": "arrays are filled",
    "give back": "freed memory goes back to the system",
    "go": "the Go language; an ordinary verb",
    "group": "a process group, a cgroup, an API group",
    "hold": "an ordinary verb",
    "host": "host memory; a host name",
    "index": "a position in a list or on a node",
    "item": "an entry of a list or a plan; metadata.items",
    "its own": "an ordinary possessive",
    "keep": "an ordinary verb; checkpoint.keep",
    "kind": "the kind of a Kubernetes object",
    "line": "a line of text; a straight line",
    "machine": "where a benchmark ran; a state machine",
    "member": "a field of an object",
    "memory": "of a GPU or a host",
    "moment": "a point of time; a moment of an optimizer",
    "preemption": "of a GPUJob; only of a pod is it an eviction",
    "put": "an ordinary verb; a dictionary's put",
    "refusal": "an answer of a server, or the reason of a setting's",
    "refused": "a request that a server rejected",
    "repeat": "an ordinary verb",
    "rest": "what remains",
    "root": "the root module; the root user",
    "round": "to round a number",
    "sample": "one of the samples of a batch",
    "save": "to save a file",
    "separate": "an ordinary adjective",
    "settled": "a measurement that no longer changes",
    "take": "an ordinary verb",
    "try": "a Python statement; an ordinary verb",
    "try again": "an answer asks a client to",
    "turn": "two variants run in turns",
    "waiting": "to wait for something",
    "what if": "no term, but a beginning of a question",
    "words": "words of a text",
    "worth": "a term of the score",
}
# Names that others read and write: changing them is a change of the API, not of a text.
NAMES = re.compile(
    r"\b(NoRoom|MakingRoom|NO_ROOM|MAKING_ROOM"  # reasons of the condition Scheduled
    r"|telemetryStaleSeconds|telemetry_stale_seconds"  # a field of the configuration
    r"|(CPU|cpu)[- _]cards?(?=\b|_)|CPUCards?"  # the local cluster's stand-in for a GPU
    r"|OpenShift|openshift"  # the product
    r")"
)
PLACES = {
    ("card", "README.md"): "output of the demo, which speaks of its CPU cards",
    ("telemetry", "docs/benchmarks.md"): "the name of a benchmark",
    ("card", "operator/src/gpujob_operator/agent/cpu/"): "the CPU cards themselves",
}


def spaced(text: str) -> str:
    """Words of identifiers apart: snake_case, camelCase, kebab-case; line breaks are spaces."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return re.sub(r"[\s_\-#]+", " ", apart).lower()


def old_words() -> set[str]:
    found = rows(GLOSSARY.read_text(encoding="utf-8"))
    return {word for row in found for word in row.replaced.split(", ") if word != "-"}


def uses(text: str, words: set[str]) -> Iterator[str]:
    """The words that occur in the text, in the singular or the plural."""
    plain = spaced(NAMES.sub("", text))
    for word in sorted(words):
        if re.search(rf"\b{re.escape(spaced(word))}s?\b", plain):
            yield word


def excused(word: str, path: str) -> bool:
    return any(word == known and path.startswith(place) for known, place in PLACES)


@pytest.mark.parametrize("path", SCOPE, ids=relative)
def test_no_old_word_is_used(path: Path) -> None:
    words = old_words() - EVERYDAY.keys()
    found = uses(path.read_text(encoding="utf-8"), words)
    name = relative(path)
    assert [word for word in found if not excused(word, name)] == []


def test_every_exception_is_an_old_word() -> None:
    assert EVERYDAY.keys() - old_words() == set()
    assert {word for word, _ in PLACES} - old_words() == set()


def test_every_exception_is_needed() -> None:
    texts = {relative(path): path.read_text(encoding="utf-8") for path in SCOPE}
    needless = [
        (word, place)
        for word, place in PLACES
        if not any(name.startswith(place) and [*uses(texts[name], {word})] for name in texts)
    ]
    assert needless == []
    everything = spaced(" ".join(texts.values()))
    assert [word for word in EVERYDAY if spaced(word) not in everything] == []


@pytest.mark.parametrize(
    "text",
    [
        "def stranger_bytes():",
        "class StrangerProcess:",
        "used by strangers",
        "STRANGERS_NODE = 1",
        "stranger-pods",
    ],
)
def test_an_old_word_is_found_in_any_spelling(text: str) -> None:
    assert list(uses(text, {"stranger"})) == ["stranger"]


def test_an_old_word_is_found_across_a_line_break() -> None:
    assert list(uses("# it has to make\n    # room for", {"make room"})) == ["make room"]
    assert not list(uses("a roommate, strangely", {"room", "stranger"}))


def test_names_of_the_api_are_no_text() -> None:
    assert not list(uses("reason `NoRoom`, telemetryStaleSeconds, a CPU card", {"room", "card"}))
    assert list(uses("no room on a card", {"room", "card"})) == ["card", "room"]


def test_the_scope_has_the_places_where_people_read() -> None:
    names = {relative(path) for path in SCOPE}
    assert {"README.md", "crds/gpujob.dev_gpujobs.yaml", "docs/guides/gpujob.md"} <= names
    assert "operator/src/gpujob_operator/decide/planner.py" in names
    assert ROOT / "worker/src/gpujob_worker/hooks.py" in SCOPE
