"""Public scripts with and without the worker: what counts as the same, and the data they read."""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.hooked import Run
from bench.scripts import __main__ as command
from bench.scripts import runs
from bench.scripts.__main__ import main
from bench.scripts.catalogue import SCRIPTS, Script
from bench.scripts.runs import judge, said
from bench.scripts.synthetic import characters, digits, pictures, sentences
from gpujob_api.settings import OptimizeMode, Precision, Settings, Toggle
from gpujob_worker.options import ENV_OPTIONS, options_of_run

SCRIPT = Script("owner/name", ".", ("python", "main.py"))


def run(output: str, code: int = 0) -> Run:
    return Run(code, output, "", None, 1.0)


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("step 7 | step time 32.51ms", "step 7 | step time 9.1ms"),
        ("| ms/batch 12.34 | loss 5.10", "| ms/batch 99.01 | loss 5.10"),
        ("Epoch done. Time per batch: 0.123[s]", "Epoch done. Time per batch: 9.5[s]"),
        ("end of epoch | time:  0.58s | loss 5.1", "end of epoch | time: 40.94s | loss 5.1"),
        ("2026-11-22 10:01:02 saved /one/plain/x", "2026-11-23 11:41:59 saved /other/hooked/x"),
    ],
)
def test_times_and_folders_are_not_compared(line: str, other: str) -> None:
    assert said(run(line)) == said(run(other))


def test_losses_are_compared() -> None:
    assert said(run("Loss: 0.51")) != said(run("Loss: 0.52"))


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (run("loss: 1.00"), "identical"),
        (run("loss: 1.01"), "close"),
        (run("loss: 1.10"), "differs"),
        (run("nothing"), "other output"),
        (run("loss: 1.00", 3), "exit 3"),
    ],
)
def test_what_a_hooked_run_is_called(after: Run, verdict: str) -> None:
    assert judge(SCRIPT, run("loss: 1.00"), after) == verdict


def test_repositories_are_listed_and_a_missing_folder_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out.split()
    assert listed == sorted({script.repository for script in SCRIPTS.values()})
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path / "none")])
    assert "none is no folder with checkouts" in capsys.readouterr().err


def test_a_checkout_that_is_missing_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(tmp_path), "--scripts", "MNIST"]) == 0
    assert "MNIST, LSTM: no checkout of pytorch/examples" in capsys.readouterr().err


class Executed:
    """Stands in for the runs of a script: keeps the settings of each, by its folder's name."""

    def __init__(self) -> None:
        self.settings: dict[str, Settings] = {}

    def __call__(
        self, _: Sequence[str], folder: Path, variables: Mapping[str, str], __: Path
    ) -> Run:
        asked = options_of_run(variables).settings if ENV_OPTIONS in variables else None
        self.settings[folder.name] = Settings.from_text(asked or "{}")
        return run("loss: 1.00")


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Executed:
    """Of one script, whose checkout is in `checkouts`."""
    found = Executed()
    monkeypatch.setattr(runs, "execute", found)
    monkeypatch.setattr(command, "SCRIPTS", {"small": SCRIPT})
    (tmp_path / "checkouts" / "name").mkdir(parents=True)
    return found


def test_settings_that_are_asked_for_are_those_of_both_runs_with_the_worker(
    executed: Executed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {"precision": "bfloat16", "compile": "On"}
    data = str(tmp_path / "checkouts")
    assert main(["--data", data, "--settings", json.dumps(asked)]) == 0
    assert executed.settings["plain"] == Settings()
    for name, mode in (("measured", OptimizeMode.RECOMMEND), ("hooked", OptimizeMode.AUTO)):
        expected = Settings(mode=mode, precision=Precision.BFLOAT16, compile=Toggle.ON)
        assert executed.settings[name] == expected
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["settings"] == asked


def test_without_them_a_job_is_as_by_default(executed: Executed, tmp_path: Path) -> None:
    assert main(["--data", str(tmp_path / "checkouts")]) == 0
    assert executed.settings == {
        "plain": Settings(),
        "measured": Settings(mode=OptimizeMode.RECOMMEND),
        "hooked": Settings(),
    }


@pytest.mark.parametrize("text", ["{", "[]", '{"precision":"bfloat"}'])
def test_settings_that_cannot_be_read_are_refused_before_any_run(
    text: str, executed: Executed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path / "checkouts"), "--settings", text])
    assert "argument --settings: " in capsys.readouterr().err
    assert executed.settings == {}


def test_digits_are_alike_every_time_and_as_long_as_they_say(tmp_path: Path) -> None:
    for name in "ab":
        digits(30, 20)(tmp_path / name)
    for prefix, count in (("train", 30), ("t10k", 20)):
        for kind, head, size in (("images-idx3", 16, 784), ("labels-idx1", 8, 1)):
            name = f"MNIST/raw/{prefix}-{kind}-ubyte"
            data = (tmp_path / "a" / name).read_bytes()
            assert struct.unpack(">i", data[4:8]) == (count,)
            assert len(data) == head + count * size
            assert data == (tmp_path / "b" / name).read_bytes()


def test_pictures_are_pngs_of_their_side(tmp_path: Path) -> None:
    pictures({"one": 2, "two": 1}, 5)(tmp_path)
    paths = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png"))
    assert paths == ["one/000.png", "one/001.png", "two/000.png"]
    data = (tmp_path / paths[0]).read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (5, 5)
    at = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[at - 4 : at])
    assert len(zlib.decompress(data[at + 4 : at + 4 + length])) == 5 * (1 + 3 * 5)


def test_texts_have_their_lines_and_their_characters(tmp_path: Path) -> None:
    sentences({"train.txt": 7})(tmp_path)
    assert len((tmp_path / "train.txt").read_text().splitlines()) == 7
    characters(tmp_path)
    tokens = [np.fromfile(tmp_path / f"{name}.bin", dtype=np.uint16) for name in ("train", "val")]
    assert max(int(part.max()) for part in tokens) < 13
    assert len(tokens[0]) > 8 * len(tokens[1]) > 0
