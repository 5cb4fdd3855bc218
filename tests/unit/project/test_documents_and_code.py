"""What documents name is there: options, fields, values, variables, metrics, labels, defaults."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any

import pytest
import yaml

from gpujob_api import meta
from gpujob_api.codec import encode
from gpujob_api.field_types import json_fields
from gpujob_operator.decide.model.configuration import Configuration
from kubectl_gpujob.grammar import VERBS, module_of, parser_of
from tests.harness.repository import ROOT, relative, tracked
from tests.harness.series import families

REFERENCE = ROOT / "docs" / "reference"
# Of the platform, and not fields of ours.
DOCUMENTS = [path for path in tracked("*.md") if path.name != "CHANGELOG.md"]
ENVIRONMENT = re.compile(r"\bGPUJOB_[A-Z_]+\b")
READ_BY_TESTS = re.compile(r'environ\.get\("(GPUJOB_[A-Z_]+)"')
OUR_KEY = re.compile(r"\bgpujob\.dev/([a-z][a-z-]*)\b")
FIELD = re.compile(r"`((?:spec|status)(?:\.[A-Za-z]+)+)`")
CHART_VALUE = re.compile(
    r"`((?:admissionPolicies|agent|configuration|crds|image|metrics|networkPolicy|operator|podDisruptionBudget|rbac|"
    r"reports|serviceAccount)(?:\.[A-Za-z]+)+)(?:=[^`]*)?`"
)
# `kubectl gpujob rerun` has a --set of its own.
SET_FLAG = re.compile(r"^(?:(?!rerun).)*?--set ([^\s`]+)", re.MULTILINE)
SERIES = re.compile(r"\bgpujob_(?!api|operator|worker|dashboard|local)[a-z_]+")
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)


def find(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    for path in DOCUMENTS:
        for match in pattern.finditer(path.read_text(encoding="utf-8")):
            yield relative(path), match[1] if pattern.groups else match[0]


def missing(pattern: re.Pattern[str], known: set[str]) -> list[tuple[str, str]]:
    return [(where, name) for where, name in find(pattern) if name not in known]


def text_of(pattern: str) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in tracked(pattern))


@cache
def code() -> str:
    return text_of("*/src/*.py")


def test_variables_exist() -> None:
    known = {
        *ENVIRONMENT.findall(code()),
        *ENVIRONMENT.findall((ROOT / "Makefile").read_text(encoding="utf-8")),
        *READ_BY_TESTS.findall(text_of("tests/*.py")),
    }
    assert missing(ENVIRONMENT, known) == []


def test_labels_annotations_and_taints_exist() -> None:
    constants = [value for value in vars(meta).values() if isinstance(value, str)]
    known = {text.partition("/")[2] for text in constants if text.startswith("gpujob.dev/")}
    assert {"managed", "spot", "reclaim"} <= known
    assert missing(OUR_KEY, known | {meta.VERSION[:1]}) == []


def paths(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every field's path, through lists and maps."""
    for name, part in (schema.get("properties") or {}).items():
        yield f"{prefix}{name}"
        yield from paths(part, f"{prefix}{name}.")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from paths(schema[key], prefix)


def test_fields_of_objects_exist() -> None:
    known: set[str] = set()
    for path in (ROOT / "crds").glob("*.yaml"):
        for version in yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]:
            known |= set(paths(version["schema"]["openAPIV3Schema"]))
    assert missing(FIELD, known) == []


def test_values_of_the_chart_exist() -> None:
    schema = json.loads((ROOT / "charts/gpujob/values.schema.json").read_text(encoding="utf-8"))
    known = set(paths(schema))
    assert missing(CHART_VALUE, known) == []
    flags = [(where, pair) for where, text in find(SET_FLAG) for pair in text.split(",")]
    assert flags
    assert [flag for flag in flags if flag[1].partition("=")[0] not in known] == []


def test_values_schema_and_defaults_have_the_same_fields() -> None:
    """A value without a default is in no file that users read; one without a schema unchecked."""
    schema = json.loads((ROOT / "charts/gpujob/values.schema.json").read_text(encoding="utf-8"))
    defaults = yaml.safe_load((ROOT / "charts/gpujob/values.yaml").read_text(encoding="utf-8"))
    free = re.compile(
        r"^(configuration|global)(\.|$)|\.(resources|affinity|labels)\.|^defaultQueue\.spec\.|\.name$"
    )
    known = {path for path in paths(schema) if not free.search(path)}
    written = {path for path in value_paths(defaults) if not free.search(path)}
    assert known == written


def value_paths(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from value_paths(value, f"{prefix}{name}.")


def test_templates_read_no_value_that_there_is_not() -> None:
    schema = json.loads((ROOT / "charts/gpujob/values.schema.json").read_text(encoding="utf-8"))
    known = set(paths(schema))
    read = {
        match.rstrip(".")
        for path in tracked("charts/gpujob/templates/*")
        for match in re.findall(r"\.Values\.([A-Za-z][A-Za-z.]*)", path.read_text(encoding="utf-8"))
    }
    assert read
    assert read - known == set()


def test_values_of_enumerations_are_in_the_charts_schema_and_in_the_reference() -> None:
    schema = json.loads((ROOT / "charts/gpujob/values.schema.json").read_text(encoding="utf-8"))
    known = schema["properties"]["configuration"]["properties"]
    text = (REFERENCE / "configuration.md").read_text(encoding="utf-8")
    kinds = {
        name: type(getattr(Configuration(), field))
        for name, (field, _) in json_fields(Configuration).items()
    }
    enums = {name: kind for name, kind in kinds.items() if issubclass(kind, Enum)}
    assert "orderPolicy" in enums
    for name, kind in enums.items():
        values = [str(one.value) for one in kind]
        (row,) = re.findall(rf"^\| `{name}` \|.*", text, re.MULTILINE)
        assert sorted(known[name]["enum"]) == sorted(values), name
        assert [value for value in values if value not in row] == [], name


BYTES = re.compile(r"^(\d+) \(")


def test_the_configurations_defaults_are_those_that_are_told() -> None:
    rows = dict(ROW.findall((REFERENCE / "configuration.md").read_text(encoding="utf-8")))
    defaults = encode(Configuration())
    assert list(rows) == list(json_fields(Configuration))
    for name in rows:
        default = None if defaults.get(name) in ("", {}) else defaults.get(name)
        told = rows[name].split(";")[0].strip()
        if default is None:
            assert told == ("the operator's own" if name == "reportUrl" else "none"), name
        else:
            told = match[1] if (match := BYTES.match(told)) else told.strip("`")
            assert told_value(told) == default, name


def told_value(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def test_every_series_is_in_the_reference() -> None:
    ours = [f for f in families() if f.name.startswith("gpujob_")]
    exported = {f.name + ("_total" if f.type == "counter" else ""): f.type for f in ours}
    table = dict(ROW.findall((REFERENCE / "metrics.md").read_text(encoding="utf-8")))
    told = {name: kind.strip() for name, kind in table.items() if name.startswith("gpujob_")}
    assert told == exported
    assert missing(SERIES, set(exported)) == []


def command_options() -> dict[str, list[set[str]]]:
    """The names of each option of each command."""
    found: dict[str, list[set[str]]] = {}
    for verb in VERBS:
        parser = parser_of(verb, module_of(verb))
        actions = [action for action in parser._actions if action.option_strings]
        found[verb.name] = [set(action.option_strings) for action in actions]
    return found


COMMAND_LINE = re.compile(r"kubectl gpujob ([a-z]+)((?: [^`\n#]+)?)")
OPTION = re.compile(r"(?<![\w-])(-[a-zA-Z]|--[a-z][a-z-]+)\b")


def test_kubectl_gpujobs_commands_and_options_exist() -> None:
    known = command_options()
    wrong: list[str] = []
    for path in DOCUMENTS:
        for name, rest in COMMAND_LINE.findall(path.read_text(encoding="utf-8")):
            if name in known:
                ours = rest.partition(" -- ")[0]
                unknown = set(OPTION.findall(ours)) - {"--help"}.union(*known[name])
                wrong += [f"{relative(path)}: {name} {option}" for option in unknown]
    assert wrong == []
    text = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    for name, options in known.items():
        assert f"kubectl gpujob {name}" in text, name
        untold = [names for names in options if not any(f"{one}" in text for one in names)]
        assert untold == [], name


PROGRAMS = {
    "gpujob-run": ["gpujob_worker", "--help"],
    "gpujob-operator": ["gpujob_operator", "run", "--help"],
    "gpujob-agent": ["gpujob_operator.agent", "--help"],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_options_exist(program: str) -> None:
    command = [sys.executable, "-m", *PROGRAMS[program]]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    known = set(OPTION.findall(re.sub(r"-\n\s+", "-", shown))) | {"--why"}
    assert known
    line = re.compile(rf"(?:`|^\$ |\[){program}(?!-)([^`\n\]]*)", re.MULTILINE)
    wrong = [
        f"{relative(path)}: {option}"
        for path in DOCUMENTS
        for rest in line.findall(path.read_text(encoding="utf-8"))
        # The script's own options follow; in YAML the words are separated by commas.
        for option in OPTION.findall(re.split(r",? --,? ", rest)[0])
        if option not in known
    ]
    assert wrong == []


def test_every_option_of_the_launcher_in_the_reference_exists() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "gpujob_worker", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    known = set(OPTION.findall(re.sub(r"-\n\s*", "-", shown))) - {"--epochs"}
    text = (REFERENCE / "commands.md").read_text(encoding="utf-8").partition("## gpujob-run")[2]
    section = text.partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    told = {option for row in rows for option in OPTION.findall(row)} - {"--no-"}
    assert told - known == set()
    switches = {option for option in known if option.startswith("--no-")}
    assert known - switches - told == {"-h", "--help"}


CONDITION_OR_REASON = re.compile(r"(?:reason|condition|Reason|Condition)s? `([A-Z][A-Za-z]+)`")


def test_conditions_and_reasons_exist() -> None:
    words = {
        value.value if isinstance(value, Enum) else value
        for value in re.findall(r'"([A-Z][A-Za-z]+)"', code())
    }
    assert list(find(CONDITION_OR_REASON))
    assert missing(CONDITION_OR_REASON, words) == []


# What must not be there.
ABSENT = {"operator/__init__.py"}


def test_files_named_in_documents_exist() -> None:
    named = re.compile(
        r"`((?:api|bench|charts|cli|crds|docs|examples|local|operator|requirements|scripts|tests|"
        r"tools|worker)/[\w./{},-]+)`"
    )
    wrong = [
        (where, name)
        for where, name in find(named)
        if name not in ABSENT and not all(list(ROOT.glob(one)) for one in expanded(name))
    ]
    assert wrong == []


def expanded(name: str) -> list[str]:
    match = re.search(r"\{([^}]*)\}", name)
    if match is None:
        return [name.rstrip("/")]
    return [name.replace(match[0], part, 1).rstrip("/") for part in match[1].split(",")]
