"""A script that only answers goes on at its batch, and its files end as those of a plain run."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.harness.worker_process import WorkerRun, run_alone, run_worker

pytestmark = pytest.mark.timeout(400)

# Arguments: the call after which the script stops itself (0: never), and where its files go.
HEAD = """
import csv, json, os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
out = sys.argv[2]
torch.manual_seed(1)
torch.set_num_threads(1)
x = torch.randn(241, 8)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)).eval()
calls = 0
def answers(batch):
    global calls
    found = net(batch)
    calls += 1
    # A variable would come back as it was in the attempt before.
    if calls == int(sys.argv[1]): os.kill(os.getpid(), signal.SIGTERM)
    return found
"""
LINES = """
with torch.inference_mode(), open(out, "w") as file:
    for (batch,) in DataLoader(TensorDataset(x), batch_size=4):
        for row in answers(batch): file.write(json.dumps(row.tolist()) + "\\n")
"""
SCRIPTS = {
    "lines of a file": LINES,
    "in a function": """
def main():
    loader = DataLoader(TensorDataset(x), batch_size=4)
    with open(out, "w") as file:
        table = csv.writer(file)
        with torch.no_grad():
            for number, (batch,) in enumerate(loader):
                for row in answers(batch): table.writerow([number, *row.tolist()])
main()
""",
    "a list that grows": """
found = []
with torch.no_grad():
    for (batch,) in DataLoader(TensorDataset(x), batch_size=4):
        found.append(answers(batch))
torch.cat(found).numpy().tofile(out)
""",
    "a tensor that is filled": """
found = torch.zeros(241, 4)
with torch.no_grad():
    for first in range(0, 241, 4):
        found[first:first + 4] = answers(x[first:first + 4])
found.numpy().tofile(out)
""",
    "loader workers": LINES.replace("batch_size=4", "batch_size=4, num_workers=2"),
    "random samples": LINES.replace("batch_size=4", "batch_size=4, shuffle=True"),
    "dropout that stays on": LINES.replace(
        "with torch", "net = nn.Sequential(net, nn.Dropout(0.5)).train()\nwith torch", 1
    ),
    "a call before the loop": "net(x[:1])\n" + LINES,
    "several passes": """
with torch.no_grad(), open(out, "w") as file:
    for number, part in enumerate((x[:120], x[120:])):
        for (batch,) in DataLoader(TensorDataset(part), batch_size=4):
            for row in answers(batch): file.write(str(number) + json.dumps(row.tolist()) + "\\n")
""",
    "a file for each batch": """
os.makedirs(out + "-parts", exist_ok=True)
with torch.no_grad():
    for number, (batch,) in enumerate(DataLoader(TensorDataset(x), batch_size=4)):
        torch.save(answers(batch), f"{out}-parts/{number:03}.pt")
parts = sorted(os.listdir(out + "-parts"))
torch.cat([torch.load(f"{out}-parts/{name}") for name in parts]).numpy().tofile(out)
""",
}
STOPS = (9, 24, 41)


def attempt(folder: Path, number: int, stop: int, scale: str = "1", **settings: Any) -> WorkerRun:
    script = folder / "score.py"
    _, done = run_worker(
        folder / f"attempt-{number}",
        ["python", str(script), str(stop), str(folder / "out")],
        # A measurement may find other settings in another attempt, with other rounding.
        settings={"mode": "Recommend", **settings},
        options=("--explain", "--tuning-seconds", "1"),
        environment={
            "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "GPUJOB_ATTEMPT": str(number),
            "GPUJOB_GRACE_SECONDS": "60",
            "SCALE": scale,
        },
    )
    return done


def written(folder: Path, source: str) -> WorkerRun:
    folder.mkdir(exist_ok=True)
    (folder / "score.py").write_text(source)
    command = [str(folder / "score.py"), "0", str(folder / "plain")]
    code, plain = run_alone(folder / "alone", command)
    assert code == 0, plain.errors
    return plain


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_ends_as_the_plain_run_after_three_stops(name: str, tmp_path: Path) -> None:
    written(tmp_path, HEAD + SCRIPTS[name])
    step = 0
    for number, stop in enumerate(STOPS, start=1):
        done = attempt(tmp_path, number, stop)
        assert done.process.exitcode == 143, done.errors
        report = done.report
        assert (report["task"], report["protection"]) == ("Inference", "Exact")
        assert report["checkpoint"]["step"] > step
        step = report["checkpoint"]["step"]
    last = attempt(tmp_path, len(STOPS) + 1, 0)
    assert last.process.exitcode == 0, last.errors
    assert last.report["resumedFromStep"] == step
    assert (tmp_path / "out").read_bytes() == (tmp_path / "plain").read_bytes()


def test_a_checkpoint_is_of_the_batch_at_which_it_was_stopped(tmp_path: Path) -> None:
    written(tmp_path, HEAD + LINES)
    first = attempt(tmp_path, 1, 20).report
    assert (first["checkpoint"]["step"], first["stepsTotal"]) == (20, 61)
    last = attempt(tmp_path, 2, 0)
    assert last.report.get("stepsTotal", 61) == 61, "the operator keeps the number"
    # 241 samples in batches of 4.
    assert (last.report["resumedFromStep"], last.report["step"]) == (20, 61)
    assert "compared: the answer is" in "\n".join(last.report["explain"])


def test_another_model_after_the_stop_is_noticed(tmp_path: Path) -> None:
    """Its first answers are not those that the run before would have given."""
    source = HEAD.replace("net(batch)", "net(batch * float(os.environ['SCALE']))")
    (tmp_path / "score.py").write_text(source + LINES)
    first, second = attempt(tmp_path, 1, 20), attempt(tmp_path, 2, 0, scale="2")
    assert first.process.exitcode == 143
    assert second.process.exitcode == 144
    assert "the answer of step" in second.report["resumeRefused"]["reason"]


def test_chosen_settings_hold_from_the_first_call_after_a_stop(tmp_path: Path) -> None:
    """Otherwise the answers after a resume would be rounded in another way."""
    net = "nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).eval()"
    source = HEAD.replace("x = torch.randn(241, 8)", "x = torch.randn(241, 1, 8, 8)")
    begin, end = source.index("net = "), source.index("calls = 0")
    source = f"{source[:begin]}net = {net}\n{source[end:]}" + LINES
    settings = {"mode": "Auto", "precision": "bfloat16", "compile": "Off", "dataLoading": "Off"}
    written(tmp_path / "stopped", source)
    written(tmp_path / "whole", source)
    attempt(tmp_path / "stopped", 1, 30, **settings)
    stopped = attempt(tmp_path / "stopped", 2, 0, **settings)
    whole = attempt(tmp_path / "whole", 1, 0, **settings)
    assert whole.report["tuned"]["precision"] == "bfloat16"
    assert stopped.report["tuned"]["precision"] == "bfloat16"
    lines = [
        (tmp_path / name / "out").read_text().splitlines()[30 * 4 :]
        for name in ("stopped", "whole")
    ]
    assert lines[0] == lines[1]


def test_a_stop_without_a_place_starts_from_the_beginning(tmp_path: Path) -> None:
    """The reason is known before the stop."""
    source = HEAD + "with torch.no_grad():\n    list(map(answers, x.split(4)))\n"
    written(tmp_path, source)
    done = attempt(tmp_path, 1, 20)
    assert done.process.exitcode == 144
    assert done.report["protection"] == "FromBeginning"
    assert "its steps are in no loop" in done.report["protectionReason"]


ROWS = """
import sqlite3
connection = sqlite3.connect(out + ".db")
connection.execute("CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY, value REAL)")
with torch.no_grad():
    for number, (batch,) in enumerate(DataLoader(TensorDataset(x), batch_size=4)):
        found = answers(batch)
        rows = [(4 * number + at, row[0].item()) for at, row in enumerate(found)]
        connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)
        connection.commit()
"""


def test_rows_of_a_database_with_a_key_end_as_those_of_a_plain_run(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(HEAD + ROWS)
    done = attempt(tmp_path, 1, 20)
    assert done.process.exitcode == 143, done.errors
    assert done.report["protection"] == "BestEffort"
    assert (
        "out.db is a database: rows after the last checkpoint are written twice"
        in (done.report["protectionReason"])
    )
    last = attempt(tmp_path, 2, 0)
    assert last.process.exitcode == 0, last.errors
    assert (last.report["resumedFromStep"], last.report["protection"]) == (20, "BestEffort")
    with contextlib.closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        assert connection.execute("SELECT count(*) FROM answers").fetchone() == (241,)


def test_rows_that_are_committed_at_the_end_start_from_the_beginning(tmp_path: Path) -> None:
    """A stop would lose them, and a resumed run would not write them again."""
    source = HEAD + ROWS.replace("        connection.commit()", "connection.commit()")
    (tmp_path / "score.py").write_text(source)
    done = attempt(tmp_path, 1, 20)
    assert done.process.exitcode == 144
    assert done.report["protection"] == "FromBeginning"
    assert done.report["protectionReason"] == (
        "connection is a database with rows that are not committed: commit in each turn"
    )


def test_a_script_that_trains_after_all_resumes_in_its_training(tmp_path: Path) -> None:
    source = (
        HEAD
        + """
features = []
with torch.no_grad():
    for (batch,) in DataLoader(TensorDataset(x), batch_size=4):
        features.append(answers(batch))
answered = torch.cat(features)
head = nn.Linear(4, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for number, part in enumerate(answered.split(4)):
    optimizer.zero_grad()
    (head(part) - part.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    calls += 1
    if calls == int(sys.argv[1]): os.kill(os.getpid(), signal.SIGTERM)
head.weight.detach().numpy().tofile(out)
"""
    )
    written(tmp_path, source)
    for number, stop in enumerate((20, 90), start=1):
        done = attempt(tmp_path, number, stop)
        assert done.process.exitcode == 143, done.errors
    last = attempt(tmp_path, 3, 0)
    assert last.process.exitcode == 0, last.errors
    assert "task" not in last.report
    assert (tmp_path / "out").read_bytes() == (tmp_path / "plain").read_bytes()
