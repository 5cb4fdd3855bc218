"""The table of jobs fits the terminal, one line a job."""

import pytest

from kubectl_gpujob.table import table_lines

JOB_COLUMNS = (
    *("NAMESPACE", "NAME", "QUEUE", "PHASE", "PROGRESS", "WHERE", "SPEED", "MEMORY", "COST"),
    *("AGE", "REASON"),
)
JOB_COLUMNS_LEAST = ("WHERE", "SPEED", "COST", "QUEUE", "MEMORY", "AGE", "PROGRESS")
JOB = {
    "NAMESPACE": "vision",
    "NAME": "vit-base-patch16-224-finetune-7",
    "QUEUE": "research",
    "PHASE": "Running",
    "PROGRESS": "12300/100000 12%",
    "WHERE": "gpu-node-17/GPU-4f1d2c3b",
    "SPEED": "184 ms/step, 1.42x (1.31 to 1.52)",
    "MEMORY": "5.4 GiB of 6.1 GiB",
    "COST": "$2.50/h",
    "AGE": "19m",
    "REASON": "WorkersRunning: 1 worker on gpu-node-17 and a long text after it " * 3,
}
SHORT = {**JOB, "NAME": "a", "WHERE": "", "PROGRESS": "", "REASON": ""}


@pytest.mark.parametrize("width", [80, 100, 120, 160, 400])
def test_a_line_fits_and_names_are_whole(width: int) -> None:
    lines = table_lines([JOB, SHORT], JOB_COLUMNS, JOB_COLUMNS_LEAST, width)
    assert len(lines) == 3
    assert all(len(line) <= width and line == line.rstrip() for line in lines)
    assert JOB["NAME"] in lines[1]
    assert {"NAME", "PHASE"} <= set(lines[0].split())
    assert "PROGRESS" in lines[0].split()
    assert ("WHERE" in lines[0].split()) is (width >= 400)


def test_a_name_is_never_cut() -> None:
    lines = table_lines([JOB], JOB_COLUMNS, JOB_COLUMNS_LEAST, 20)
    assert [line.split() for line in lines] == [
        ["NAMESPACE", "NAME", "PHASE"],
        ["vision", JOB["NAME"], "Running"],
    ]


def test_a_pipe_has_all_of_it() -> None:
    heading, line = table_lines([JOB], JOB_COLUMNS, JOB_COLUMNS_LEAST, 4096)
    assert heading.split() == list(JOB_COLUMNS)
    assert line.endswith(JOB["REASON"].rstrip())
