"""The output of the commands: data on standard output, remarks on standard error."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from gpujob_api.visible import visible
from kubectl_gpujob.table import table_lines

# The version of the command line's own JSON.
VERSION = "cli.gpujob.dev/v1"
# Wide enough for every column when the output is a pipe, because programs want whole lines.
PIPE_COLUMNS = 4096
# The narrowest column of texts that are wrapped.
TEXT_COLUMNS_MIN = 24
_GAP = 3
_CLEAR = "\x1b[H\x1b[2J"
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Screen:
    """Where a command writes. Texts of users and workers cannot control the terminal."""

    out: TextIO
    err: TextIO
    width: int = PIPE_COLUMNS
    is_terminal: bool = False
    colours: bool = False

    def line(self, text: str = "") -> None:
        print(visible(text), file=self.out, flush=True)

    def note(self, text: str) -> None:
        """Writes a remark, which is no data."""
        print(visible(text), file=self.err, flush=True)

    def title(self, text: str) -> None:
        shown = visible(text)
        print(f"{_BOLD}{shown}{_PLAIN}" if self.colours else shown, file=self.out)

    def json(self, value: object) -> None:
        print(json.dumps(value, indent=2, sort_keys=True), file=self.out)

    def listing(self, value: object, *, again: bool) -> None:
        """Writes JSON. A list that is written `again` and again is one line each (NDJSON)."""
        if again:
            text = json.dumps(value, separators=(",", ":"), sort_keys=True)
            print(text, file=self.out, flush=True)
        else:
            self.json(value)

    def clear(self) -> None:
        """Clears a terminal. Other outputs keep everything."""
        if self.is_terminal:
            self.out.write(_CLEAR)

    def yaml(self, value: object) -> None:
        import yaml

        # A copy without shared parts, which YAML would write as anchors.
        plain = json.loads(json.dumps(value))
        print(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip(), file=self.out)

    def rows(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Writes a title and labelled texts, wrapped at the terminal's width."""
        self.title(title)
        labels = max((len(label) for label, _ in rows), default=0)
        width = max(self.width - labels - 2 - _GAP, TEXT_COLUMNS_MIN)
        for label, value in rows:
            first, *others = textwrap.wrap(visible(value), width, break_on_hyphens=False) or [""]
            print(f"  {label.ljust(labels + _GAP)}{first}".rstrip(), file=self.out)
            for other in others:
                print(" " * (2 + labels + _GAP) + other, file=self.out)

    def table(
        self, rows: Sequence[Mapping[str, str]], columns: Sequence[str], least: Sequence[str] = ()
    ) -> None:
        """Writes a table that fits the terminal. `least` are the columns to leave out first."""
        shown = [{name: visible(cell) for name, cell in row.items()} for row in rows]
        for line in table_lines(shown, columns, least, self.width):
            print(line, file=self.out)

    def csv(self, rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> None:
        import csv

        writer = csv.writer(self.out, lineterminator="\n")
        writer.writerow([name.lower() for name in columns])
        writer.writerows([[visible(row[name]) for name in columns] for row in rows])


def standard_screen() -> Screen:
    """Returns the screen of this process. NO_COLOR and pipes have no colours."""
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else PIPE_COLUMNS
    colours = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Screen(sys.stdout, sys.stderr, width, is_terminal, colours)


def list_of(kind: str, items: Sequence[Any]) -> Mapping[str, Any]:
    """Returns the JSON of a list of the command line's own, with the version of its form."""
    return {"apiVersion": VERSION, "kind": kind, "items": list(items)}
