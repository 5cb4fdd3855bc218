"""The output of the commands: tables for people, JSON for programs."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from gpujob_api.gpujob import GPUJob
from gpujob_api.visible import visible
from kubectl_gpujob import text
from kubectl_gpujob.report import Comparison
from kubectl_gpujob.table import table_lines

if TYPE_CHECKING:
    from kubectl_gpujob.simulate import Answer

# Wide enough for every column when the output is a pipe, because programs want whole lines.
PIPE_COLUMNS = 4096
JOB_COLUMNS = (
    *("NAMESPACE", "NAME", "QUEUE", "PHASE", "PROGRESS", "WHERE", "SPEED", "MEMORY", "COST"),
    *("AGE", "REASON"),
)
JOB_COLUMNS_LEAST = ("WHERE", "SPEED", "COST", "QUEUE", "MEMORY", "AGE", "PROGRESS")


def _console() -> Console:
    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else Console(width=PIPE_COLUMNS, markup=False)


def _add(table: Table, *cells: str) -> None:
    """Adds a row. It has texts of users and workers, which must not control the terminal."""
    table.add_row(*map(visible, cells))


def _show(table: Table) -> None:
    """Prints a table without trailing blanks."""
    console = _console()
    with console.capture() as shown:
        console.print(table)
    for line in shown.get().splitlines():
        print(line.rstrip())  # noqa: T201 - the answer itself


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, sort_keys=True))  # noqa: T201 - the answer itself


def print_rows(title: str, rows: list[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 3, 0, 0))
    for label, value in rows:
        _add(table, f"  {label}", value)
    _console().print(visible(title), style="bold")
    _show(table)


def print_simulation(found: "Answer") -> None:
    from kubectl_gpujob import simulate

    _console().print(visible(simulate.headline(found)))
    if not found.asked:
        _console().print("no pending jobs")
    for job in found.asked:
        print_rows(job.name, simulate.rows(job, found))
    others = simulate.other_rows(found)
    if others:
        print_rows("Others", others)


def print_comparison(rows: list[Comparison]) -> None:
    if not rows:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for heading in ("  ", "first steps", "latest steps", ""):
        table.add_column(heading)
    for what, *values in rows:
        _add(table, f"  {what}", *values)
    _show(table)


def print_jobs(jobs: Sequence[GPUJob], now: datetime, *, namespaces: bool) -> None:
    in_order = sorted(jobs, key=lambda job: (job.metadata.namespace, job.metadata.name))
    columns = JOB_COLUMNS if namespaces else JOB_COLUMNS[1:]
    rows = [_job_cells(job, now) for job in in_order]
    for line in table_lines(rows, columns, JOB_COLUMNS_LEAST, _console().width):
        print(line)  # noqa: T201 - the answer itself


def _job_cells(job: GPUJob, now: datetime) -> dict[str, str]:
    """Returns a job's cells. They have texts of users and workers, which must not control the
    terminal.
    """
    summary = job.status.summary
    cells = (
        job.metadata.namespace,
        job.metadata.name,
        job.spec.queue,
        job.status.phase.value,
        summary.progress,
        summary.where,
        summary.speed,
        summary.memory,
        summary.cost,
        text.age(job.metadata.creation_timestamp, now),
        summary.reason,
    )
    return dict(zip(JOB_COLUMNS, map(visible, cells), strict=True))
