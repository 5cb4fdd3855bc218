"""Scripts with checkpoints and flags of their own go on from the newest one they wrote."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from gpujob_api.settings import Settings
from gpujob_worker.checkpoint.own_files import newest_checkpoint
from gpujob_worker.launch.resume_flags import adapt_resume, known_arguments
from gpujob_worker.run.decision_log import DecisionLog
from tests.harness.worker_process import run_worker

# Written in the manner of small public GPT trainers: globals are the configuration, `--name=value`
# changes them, a checkpoint every few steps, and `init_from` says whether to go on from it.
GLOBALS_SCRIPT = """
import os, signal, sys, torch
out_dir = "out"
init_from = "scratch"  # or "resume"
max_steps = 20
stop = 0
for argument in sys.argv[1:]:
    name, _, value = argument.lstrip("-").partition("=")
    globals()[name] = type(globals()[name])(value)
torch.manual_seed(1337)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
step = 0
if init_from == "resume":
    saved = torch.load(os.path.join(out_dir, "ckpt.pt"))
    model.load_state_dict(saved["model"]); optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
print("from", step)
while step < max_steps:
    if step % 5 == 0:
        os.makedirs(out_dir, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, os.path.join(out_dir, "ckpt.pt"))
    optimizer.zero_grad(); model(torch.ones(2, 4)).square().mean().backward(); optimizer.step()
    step += 1
    if step == stop: os.kill(os.getpid(), signal.SIGTERM)
print("weight", model.weight.sum().item())
"""


def test_a_script_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    """Three attempts: one is stopped between two checkpoints of the script's own."""
    script = tmp_path / "train.py"
    script.write_text(GLOBALS_SCRIPT)
    results: dict[str, str] = {}
    for name, attempt, stop in (("whole", 1, 0), ("stopped", 1, 13), ("stopped", 2, 0)):
        directory = tmp_path / name / "checkpoints"
        command = ["python", str(script), f"--out_dir={directory / 'own'}", f"--stop={stop}"]
        code, done = run_worker(
            tmp_path / name / str(attempt),
            command,
            settings={"mode": "Recommend", "scriptCheckpoint": "own/*.pt"},
            environment={"GPUJOB_CHECKPOINT_DIR": str(directory), "GPUJOB_ATTEMPT": str(attempt)},
        )
        assert code == (144 if stop else 0), done.errors
        results[f"{name}-{attempt}"] = done.output
        said = "\n".join(done.report["explain"])
        if attempt == 2:
            assert "own checkpoint applied: --init_from=resume" in said
        else:
            assert "own checkpoint none at" in said
        assert "resume skipped: the script keeps checkpoints of its own" in said
        assert done.report["protection"] == "BestEffort"
    assert results["stopped-2"].startswith("from 10\n")
    last = [results[name].splitlines()[-1] for name in ("whole-1", "stopped-2")]
    assert last[0] == last[1]


def parser(*lines: str) -> str:
    return "import argparse\nparser = argparse.ArgumentParser()\n" + "\n".join(lines)


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        (parser('parser.add_argument("--resume", default="")'), ("--resume", "{path}")),
        (parser('parser.add_argument("-r", "--resume", action="store_true")'), ("--resume",)),
        (
            parser(
                'parser.add_argument("--resume", type=bool)',
                'parser.add_argument("--resume_from_checkpoint")',
            ),
            ("--resume_from_checkpoint", "{path}"),
        ),
        ("init_from = 'scratch'\n", ("--init_from=resume",)),
        ("init_from = None\n", ()),
        ("resume = 'no flag'\n", ()),
        ("this is no Python", ()),
    ],
)
def test_flags_of_well_known_scripts(
    tmp_path: Path, source: str, arguments: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert known_arguments(str(script)) == arguments


def adapted(folder: Path, given: tuple[str, ...], **settings: Any) -> tuple[tuple[str, ...], str]:
    script = folder / "train.py"
    script.write_text(parser('parser.add_argument("--resume")'))
    log = DecisionLog()
    found = adapt_resume(str(script), given, Settings(**settings), folder, log)
    return tuple(found), "\n".join(log.lines)


def test_the_newest_whole_file_is_resumed_from(tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / f"step-{number}.pt"
        torch.save({"step": number}, path)
        os.utime(path, (1000 + number, 1000 + number))
    cut = tmp_path / "step-2.pt"
    cut.write_bytes(cut.read_bytes()[:-100])
    os.utime(cut, (1002, 1002))
    expected = tmp_path / "step-1.pt"
    assert newest_checkpoint(str(tmp_path / "*.pt")) == expected
    given, said = adapted(tmp_path, ("--lr", "1"), script_checkpoint="*.pt")
    assert given == ("--lr", "1", "--resume", str(expected))
    assert "own checkpoint applied: --resume" in said


def test_what_the_command_says_itself_stays(tmp_path: Path) -> None:
    (tmp_path / "a.bin").touch()
    given, said = adapted(tmp_path, ("--resume=x",), script_checkpoint="a.bin")
    assert given == ("--resume=x",)
    assert "the command has --resume already" in said


def test_arguments_of_the_job_come_first_and_are_needed_without_a_known_flag(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.bin").touch()
    more = ("--load={path}", "--go-on")
    given, _ = adapted(tmp_path, (), script_checkpoint="a.bin", resume_arguments=more)
    assert given == (f"--load={tmp_path / 'a.bin'}", "--go-on")
    log = DecisionLog()
    settings = Settings(script_checkpoint="a.bin")
    assert adapt_resume("-m", ["--lr"], settings, tmp_path, log) == ["--lr"]
    assert "name checkpoint.resumeArguments" in "\n".join(log.lines)


def test_the_program_of_yolo_is_known_by_its_name(tmp_path: Path) -> None:
    """Its arguments stand in the package, and not in the entry point that pip writes."""
    weights = tmp_path / "runs" / "train" / "weights"
    weights.mkdir(parents=True)
    (weights / "last.pt").write_bytes(b"saved")
    entry = tmp_path / "yolo"
    entry.write_text("from ultralytics.cfg import entrypoint\nentrypoint()\n")
    settings = Settings(script_checkpoint="runs/train/weights/last.pt")
    given = ["detect", "train", "model=yolo11n.yaml"]
    found = adapt_resume(str(entry), given, settings, tmp_path, DecisionLog())
    assert found == [*given, "resume=True", f"model={weights / 'last.pt'}"]
    chosen = [*given, "resume=False"]
    assert adapt_resume(str(entry), chosen, settings, tmp_path, DecisionLog()) == chosen
