"""Sessions at the command line as transcripts: what a person types, and what they then read.

A transcript has lines that begin with `$ `, each followed by the output and, unless it is 0, by the
exit code in brackets. Times, ages and ids differ from run to run and are written as `<time>` and
`<id>`.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Runs a command, and returns its output and its exit code.
Run = Callable[[Sequence[str]], tuple[str, int]]
_PROGRAM = "kubectl gpujob"
_NUMBER = r"\d+(?:\.\d+)?"
_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: UTC|Z|[+]00:00)?"), "<date>"),
    (re.compile(r"(?<=times of )\d{4}-\d\d-\d\d UTC"), "<date>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"(CPU-node-\d+-\d+)-\d+Mi-[0-9a-f]{8}"), r"\1"),
    (
        re.compile(
            rf"\b(?:\d+d \d+h|\d+h \d+m|\d+m \d+s|\d+[dh]\d+[hm]|\d+m\d+s|"
            rf"{_NUMBER} ?(?:ms|s|m|h|d))(?![\w/])"
        ),
        "<time>",
    ),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "<clock>"),
    # A poll may miss a state that ends soon, and so may a reading or a report.
    (
        re.compile(
            r"^gpujob/\S+: (?:Pending|Starting|Running|Stopping|BackingOff)\n"
            r"|^waiting for \S+: Pending\n"
            r"|^  (?:Untuned|Measured|Device) .*\n"
            r"|^  Progress +step 0\n"
            r"|^<clock> +<time> +ReservationMeasured .*\n",
            re.MULTILINE,
        ),
        "",
    ),
    (re.compile(r"(?:\?|[\d.]+ [MGK]iB) of (?=1\.94 GiB)"), "<memory> of "),
    # A further attempt is placed by measurement if the one before lasted until a reading.
    (re.compile(r"(?<=attempt [2-9] on )node-\d \(\S+\), reserves .*"), "<placed>"),
    # The positions of jobs are counted anew in each cycle, and written as often as a status may be.
    (re.compile(r"(?<=\bposition )\d+"), "<n>"),
    (re.compile(r"(?<=Unsatisfiable #)\d+"), "<n>"),
    # The first answer may be any state of a job that ends within a second.
    (re.compile(r"created: (?!Unsatisfiable|ClaimNotFound|QueueNotFound).*"), "created: <placed>"),
    # Columns are as wide as what varies in them.
    (re.compile(r" {2,}"), "  "),
    (re.compile(r" +$", re.MULTILINE), ""),
)


@dataclass(frozen=True, slots=True)
class Session:
    """A transcript. `commands` are what is typed."""

    name: str
    head: str
    commands: tuple[str, ...]
    text: str

    def played(self, run: Run) -> str:
        """Returns the transcript of these commands as they end now."""
        parts = [self.head] if self.head else []
        for command in self.commands:
            output, code = run(words_of(command))
            shown = steady(output).rstrip("\n")
            parts.append(f"$ {command}")
            parts += [shown] if shown else []
            parts += [f"[{code}]"] if code else []
        return "\n".join(parts) + "\n"


def read_session(path: Path) -> Session:
    lines = path.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("$ "))
    commands = tuple(line[2:] for line in lines if line.startswith("$ "))
    text = path.read_text(encoding="utf-8")
    return Session(path.stem, "\n".join(lines[:first]), commands, text)


def sessions_in(folder: Path) -> list[Session]:
    return [read_session(path) for path in sorted(folder.glob("*.txt"))]


def words_of(command: str) -> Sequence[str]:
    """Returns the words after `kubectl gpujob`. Raises `ValueError` for another program."""
    if not command.startswith(f"{_PROGRAM} "):
        raise ValueError(f"a session types {_PROGRAM}; got {command!r}")
    return shlex.split(command.removeprefix(_PROGRAM))


def steady(output: str) -> str:
    """Returns the output with what differs from run to run replaced."""
    for pattern, name in _VARYING:
        output = pattern.sub(name, output)
    return output
