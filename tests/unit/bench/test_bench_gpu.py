"""The benchmarks' commands: no GPU is said, time is shared, figures are kept."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import gpu, overhead, worker
from bench.overhead import Heat
from bench.speed import race
from bench.speed.device import compilable, describe_device
from bench.speed.ways import BY_HAND, COMPILED, WORKLOADS, Scale, scale_of
from bench.turns.conductor import ENDED, Entry, Program

CPU = scale_of("cpu", quick=True)


@pytest.mark.parametrize("command", [worker, overhead, gpu])
def test_without_a_gpu_that_is_said_and_nothing_is_measured(
    command: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = ["--device", "cuda"]
    if command is gpu:
        arguments += ["--results", str(tmp_path / "results")]
    assert command.main(arguments) == 1
    printed = capsys.readouterr()
    assert "no CUDA device is available here; nothing was measured" in printed.err
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


class Recorded:
    """Stands in for the parts: keeps what time each was given, and the scale of the first."""

    def __init__(self) -> None:
        self.scale: Scale | None = None
        self.seconds: dict[str, float | None] = {}
        self.tight: list[str] = []

    def worker(self, names: Any, scale: Scale, seconds: float | None) -> list[dict[str, Any]]:
        self.seconds["worker"], self.scale = seconds, scale
        return [{"workload": name, "way": "auto", "speedup": 2.0} for name in names]

    def overhead(self, names: Any, scale: Scale, seconds: float, heats: int) -> list[Any]:
        self.seconds["overhead"] = seconds
        return [{"workload": name, "way": "off", "ratio": 1.0} for name in names]

    def limited(self, names: Any, scale: Scale) -> list[dict[str, Any]]:
        self.tight += names
        return [{"workload": name, "way": "auto"} for name in names]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    found = Recorded()
    monkeypatch.setattr(worker, "measure", found.worker)
    monkeypatch.setattr(overhead, "measure", found.overhead)
    monkeypatch.setattr(worker, "measure_tight", found.limited)
    return found


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)


class Unstarted:
    """Stands in for the conductor: keeps what it is to start, and starts nothing."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.programs: dict[str, Program] = {}

    def __call__(self, *_: Any) -> "Unstarted":
        return self

    def __enter__(self) -> "Unstarted":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def start(self, entries: Sequence[Entry], _: Any) -> None:
        self.entries |= {entry.name: entry for entry in entries}

    def round(self) -> None:
        pass

    def end_all_but(self, _: str) -> None:
        pass

    def end(self) -> None:
        pass


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("command", [gpu, worker])
def test_without_a_compiler_that_is_said_first_and_nothing_is_compiled(
    command: Any, recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = ["--results", str(tmp_path / "results")] if command is gpu else []
    assert command.main(["--device", "cpu", "--workloads", "gpt2", *results]) == 0
    said = capsys.readouterr().err.splitlines()[0]
    assert "no C++ compiler" in said
    assert recorded.scale is not None
    assert not recorded.scale.compile
    assert said == f"nothing is compiled: {recorded.scale.compile_refusal}"


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_compiled_row_is_a_note_where_nothing_can_be_compiled(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    conductor = Unstarted()
    monkeypatch.setattr(race, "Conductor", conductor)
    scale = compilable(scale_of(device, quick=False))
    (row,) = worker.measure(["gpt2"], scale, None)
    assert (row["workload"], row["way"]) == ("gpt2", COMPILED)
    assert row["note"] == f"not run, nor compiled by hand: {scale.compile_refusal}"
    assert COMPILED not in conductor.entries
    assert "--compile" not in conductor.entries[BY_HAND].command
    assert worker.summary([row]) == {}


def test_with_a_compiler_the_scale_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_refused(_module: torch.nn.Module, _device: torch.device) -> None:
        return None

    monkeypatch.setattr("gpujob_worker.inject.compiling.compile_refusal", nothing_refused)
    scale = scale_of("cuda", quick=False)
    assert compilable(scale) is scale


@pytest.mark.usefixtures("no_compiler")
def test_a_size_that_compiles_nothing_needs_no_compiler() -> None:
    assert compilable(CPU) is CPU


def test_the_parts_share_the_time(recorded: Recorded) -> None:
    found = gpu.measure(["gpt2"], gpu.PARTS, CPU, 480.0)
    given = recorded.seconds["worker"], recorded.seconds["overhead"]
    assert given == (pytest.approx(360.0), pytest.approx(33.0))
    assert found["left_out"] == []
    assert recorded.tight == ["gpt2"]


def test_a_part_alone_has_all_the_time(recorded: Recorded) -> None:
    gpu.measure(["gpt2"], ["worker"], CPU, 480.0)
    assert recorded.seconds == {"worker": 480.0}
    assert recorded.tight == []


def test_what_no_longer_fits_is_named(recorded: Recorded) -> None:
    found = gpu.measure(["gpt2", "vit"], ["tight"], CPU, 20.0)
    assert recorded.tight == []
    assert found["left_out"] == [
        "gpt2 with limited memory: out of time",
        "vit with limited memory: out of time",
    ]


def test_figures_are_kept_with_the_device_and_its_versions(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--device", "cpu", "--quick", "--results", str(tmp_path), "--workloads", "gpt2"]
    assert gpu.main(arguments) == 0
    kept = json.loads((tmp_path / "cpu-quick-gpt2.json").read_text(encoding="utf-8"))
    assert kept == json.loads(capsys.readouterr().out.splitlines()[-1])
    assert kept["results"][0]["speedup"] == 2.0
    assert kept["versions"]["torch"] == torch.__version__
    assert kept["size"] == "tiny"
    text = (tmp_path / "cpu-quick-gpt2.txt").read_text(encoding="utf-8")
    assert "Step time against the script alone" in text
    assert torch.__version__ in text


def test_a_gpus_name_names_its_files(tmp_path: Path) -> None:
    result = {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3"}
    assert gpu.write(result, "text", tmp_path).name == "nvidia-h100-80gb-hbm3.json"
    part = gpu.write(result, "text", tmp_path, ["vit", "bert"])
    assert part.name == "nvidia-h100-80gb-hbm3-vit-bert.json"


def run_of(workload: str, speedup: float, **changed: Any) -> dict[str, Any]:
    rows = {"auto": speedup, "auto, compiled": speedup, "by hand": 2.0}
    return {
        "device": "cuda",
        "device_name": "NVIDIA H100",
        "size": "full",
        "versions": {"torch": "2.11"},
        "machine": {"processor": "a processor"},
        "date": "2026-11-23",
        "seconds": 400.0,
        "results": [
            {"workload": workload, "way": way, "speedup": value} for way, value in rows.items()
        ],
        "overhead": [],
        "tight": [{"workload": workload, "way": "auto"}],
        "left_out": ["vit with limited memory: out of time"],
        **changed,
    }


def kept(folder: Path, *runs: dict[str, Any]) -> list[str]:
    paths = [folder / f"run-{number}.json" for number in range(len(runs))]
    for path, run in zip(paths, runs, strict=True):
        path.write_text(json.dumps(run))
    return ["--results", str(folder / "results"), "--merge", *map(str, paths)]


def test_several_runs_on_one_device_are_one_table(tmp_path: Path) -> None:
    ratios = {"gpt2": 1.0, "bert": 4.0, "vit": 2.0, "resnet50": 2.0, "recommender": 2.0}
    runs = [run_of(name, ratio) for name, ratio in ratios.items()]
    assert gpu.main(kept(tmp_path, run_of("gpt2", 9.0), *runs)) == 0
    name = "nvidia-h100-worker-tight-compiled-hand-merged"
    found = json.loads((tmp_path / "results" / f"{name}.json").read_text())
    speedups = {row["workload"]: row["speedup"] for row in found["results"] if row["way"] == "auto"}
    assert speedups == ratios, "of two runs of a workload the later one counts"
    assert found["summary"]["auto: geometric mean of speedups"] == pytest.approx(2.0)
    assert found["left_out"] == []
    assert found["seconds"] == 2400.0
    assert "NVIDIA H100" in (tmp_path / "results" / f"{name}.txt").read_text()


def test_a_part_of_the_workloads_is_named_and_what_is_left_out_stays(tmp_path: Path) -> None:
    assert gpu.main(kept(tmp_path, run_of("gpt2", 1.0), run_of("bert", 2.0))) == 0
    name = "nvidia-h100-gpt2-bert-worker-tight-compiled-hand-merged.json"
    found = json.loads((tmp_path / "results" / name).read_text())
    assert found["left_out"] == ["vit with limited memory: out of time"]


@pytest.mark.parametrize(
    "changed", [{"device_name": "NVIDIA A100"}, {"versions": {"torch": "2.12"}}, {"size": "tiny"}]
)
def test_runs_of_two_devices_or_versions_are_no_table(
    changed: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(kept(tmp_path, run_of("gpt2", 1.0), run_of("vit", 1.0, **changed))) == 1
    name = next(iter(changed))
    assert f"--merge: {name} differs: " in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_a_file_that_is_no_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--merge", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err


def test_every_workload_is_measured_by_default(recorded: Recorded) -> None:
    assert worker.main(["--quick"]) == 0
    assert set(recorded.tight) <= set(WORKLOADS)


def test_devices_are_described() -> None:
    found = describe_device(CPU)
    assert found["device"] == "cpu"
    assert found["threads"] == 1
    assert "accelerate" in found["versions"]


def test_a_gpu_is_described_by_name_memory_driver_and_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Properties:
        total_memory = 80 * 2**30

    def name(_: int) -> str:
        return "NVIDIA H100"

    def properties(_: int) -> Properties:
        return Properties()

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", name)
    found = describe_device(scale_of("cuda", quick=False))
    assert found["device_name"] == "NVIDIA H100"
    assert found["device_memory_bytes"] == 80 * 2**30
    assert {"cuda", "cudnn", "driver", "versions"} <= set(found)


def heat(slower: float, failure: str | None = ENDED) -> Heat:
    alone = [1.0 + index / 100 for index in range(20)]
    return Heat([(slower * s, s) for s in alone], [(2 * s, s) for s in alone], failure)


def test_overhead_is_the_mean_of_heats_and_shows_their_range() -> None:
    row = overhead._row([heat(1.00), heat(1.02)], CPU)  # pyright: ignore[reportPrivateUsage]
    assert row["ratio"] == pytest.approx(1.01, abs=1e-3)
    assert (row["lowest"], row["highest"]) == (pytest.approx(1.0), pytest.approx(1.02))
    assert row["by_clock"] == pytest.approx(2.0)
    assert row["rounds"] == 40
    assert row["note"] is None


def test_a_heat_that_failed_is_noted() -> None:
    row = overhead._row([heat(1.0), Heat([], [], "exit code 1: why")], CPU)  # pyright: ignore[reportPrivateUsage]
    assert row["note"] == "exit code 1: why"
    assert row["ratio"] == pytest.approx(1.0)
    row = overhead._row([Heat([], [], "exit code 1: why")], CPU)  # pyright: ignore[reportPrivateUsage]
    assert row == {"note": "exit code 1: why"}


def test_ways_can_be_left_out_and_an_unknown_one_is_named(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--device", "cpu", "--parts", "worker", "--results", str(tmp_path)]
    assert gpu.main([*arguments, "--ways", "hand"]) == 0
    assert recorded.scale is not None
    assert (recorded.scale.ways, recorded.scale.compile) == (("hand",), False)
    with pytest.raises(SystemExit):
        gpu.main([*arguments, "--ways", "hand,none"])
    assert "argument --ways: 'none' is none of compiled, hand, alone" in capsys.readouterr().err
