"""The simulated process is wired as `run.py` wires the real one, but for what is named here."""

import ast
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from gpujob_operator import run
from tests.simulation import operator_shell, reading_port
from tests.simulation.operator_shell import Parts

# `docs/design/fault-tests.md`: kopf and the connection are modelled, the others have no part in it.
MODELLED = {"KopfThread", "Kube", "Memo"}
ABSENT = {
    "CrashAfterWrites",
    "CycleDumps",
    "HealthServer",
    "Legacy",
    "LifeSigns",
    "Log",
    "Pace",
    "ReportEndpoint",
    "Scope",
    "Supervisor",
}
KEYWORDS_ABSENT = {
    "Leadership": {"legacy"},
    "Retry": {"retried"},
    "SchedulingLoop": {"dump_every", "dumps", "pace", "settled"},
}
# Numbers and values of the configuration, no parts.
VALUES = {"Event", "Kind", "LeaseSettings", "Plan"}


def calls(*paths: str | None) -> Mapping[str, set[str]]:
    """The classes that modules make an object of, each with the keywords of its calls."""
    of_parts = {one.name: one.default.__name__ for one in fields(Parts)}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        assert path is not None
        for node in ast.walk(ast.parse(Path(path).read_text())):
            if isinstance(node, ast.Call):
                owner, _, name = ast.unparse(node.func).rpartition(".")
                name = of_parts.get(name, name) if owner.endswith("parts") else name
                if name[:1].isupper():
                    found[name] |= {keyword.arg or "**" for keyword in node.keywords}
    return found


def test_nothing_of_the_process_is_missing_from_the_simulation() -> None:
    """A part that only the real process has is one that no seed ever tries."""
    real = {name: words for name, words in calls(run.__file__).items() if name not in VALUES}
    simulated = calls(operator_shell.__file__, reading_port.__file__)
    assert set(real) - set(simulated) == MODELLED | ABSENT
    missing = {name: real[name] - simulated[name] for name in set(real) & set(simulated)}
    assert {name: words for name, words in missing.items() if words} == KEYWORDS_ABSENT
