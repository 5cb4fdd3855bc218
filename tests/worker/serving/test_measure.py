"""A measurement runs the script itself again for each candidate, and always ends with a choice or a
reason.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from gpujob_api.serving import (
    ENV_SERVING_CACHE,
    BackendName,
    Batching,
    Choice,
    Quantization,
    ServingSettings,
)
from gpujob_api.settings import ENV_REPORT_URL, ENV_SETTINGS, Precision
from gpujob_worker.serving.choosing import measure as measuring
from gpujob_worker.serving.choosing.assignment import (
    ENV_CANDIDATE,
    RESULT,
    Assignment,
    Result,
    Work,
)
from gpujob_worker.serving.choosing.candidate_process import measure_plan, run_candidate_if_asked
from gpujob_worker.serving.choosing.children import Ended, Limits
from gpujob_worker.serving.choosing.guard import Metric
from gpujob_worker.serving.choosing.measure import Budget, MeasureError, Setup, measure
from gpujob_worker.serving.choosing.requests import Load, Seen
from gpujob_worker.serving.choosing.timing import SizeTime, Timing
from gpujob_worker.serving.plan import REFERENCE, Plan
from gpujob_worker.serving.signature import InputError

SCRIPT = Path(__file__).parent / "serving_script.py"
SETTINGS = ServingSettings(batching=Batching(max_size=4))
LOWER = Plan(BackendName.EAGER, Precision.BFLOAT16)
COMPILE = Plan(BackendName.COMPILE)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).eval()


def examples(samples: int = 256) -> torch.Tensor:
    return torch.randn(samples, 8, generator=torch.Generator().manual_seed(1))


def timing(seconds: float) -> Timing:
    return Timing(tuple(SizeTime(size, seconds, seconds, 0.001, 9) for size in (1, 2, 4)), 100, 1.0)


class Children:
    """Answers in place of processes: by plan, with a result or with a problem."""

    def __init__(self, **answers: Result | str) -> None:
        self.answers = answers
        self.asked: list[Assignment] = []
        # Assignments to answer requests, and what became of the requests, by plan.
        self.proofs: list[Assignment] = []
        self.seen: dict[str, Result | str] = {}
        self.environments: list[Mapping[str, str]] = []
        self.limits: list[Limits] = []
        self.time = 0.0
        self.seconds = 10.0
        self.proof_seconds = 12.0
        self.lines: list[str] = []

    def __call__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        limits: Limits,
    ) -> Ended:
        assignment = Assignment.from_environment(environment)
        assert assignment is not None
        if assignment.load is not None:
            return self.proof(assignment, limits)
        self.asked.append(assignment)
        self.environments.append(environment)
        self.limits.append(limits)
        self.time += min(self.seconds, limits.seconds)
        answer = self.answers.get(str(assignment.plan).replace(" ", "_"), Result(timing=timing(1)))
        if isinstance(answer, str):
            return Ended(answer or None, self.seconds, "some output")
        if answer.artifact is not None:
            (Path(assignment.folder) / answer.artifact).write_text("compiled")
        answer.write(Path(assignment.folder))
        return Ended(None, self.seconds, "")

    def proof(self, assignment: Assignment, limits: Limits) -> Ended:
        self.proofs.append(assignment)
        self.limits.append(limits)
        self.time += min(self.proof_seconds, limits.seconds)
        assert not (Path(assignment.folder) / RESULT).exists()
        kept = Result(seen=Seen(sent=1000, within=998))
        answer = self.seen.get(str(assignment.plan).replace(" ", "_"), kept)
        if isinstance(answer, str):
            return Ended(answer or None, self.proof_seconds, "some output")
        answer.write(Path(assignment.folder))
        return Ended(None, self.proof_seconds, "")


def chosen(
    children: Children,
    settings: ServingSettings = SETTINGS,
    environment: Mapping[str, str] | None = None,
    budget: Budget | None = None,
) -> Choice:
    """The choice that fake processes lead to. Lines of progress go to `children.lines`."""
    setup = Setup(
        command=["unused"],
        environment=environment or {},
        budget=budget or Budget(),
        run=children,
        now=lambda: children.time,
        log=children.lines.append,
    )
    return measure(model(), examples(), settings, setup=setup)


def test_the_reference_runs_first_and_the_fastest_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "missing_package", lambda: "onnxruntime is not installed")
    children = Children(
        Eager_float32=Result(timing=timing(0.001)),
        Compile_float32=Result(timing=timing(0.0005), relative_error_percent=0.1),
        Eager_bfloat16=Result(problem="relative error 7.1 %, at most 2.0 % at batch 1"),
        AOTInductor_float32="was ended by SIGSEGV",
    )
    choice = chosen(children)
    assert children.asked[0].plan == REFERENCE
    assert children.asked[0].is_reference
    assert not any(one.is_reference for one in children.asked[1:])
    assert (choice.backend, choice.precision) == (BackendName.COMPILE, Precision.FLOAT32)
    first = choice.candidates[0]
    assert (first.backend, first.accepted, first.relative_error_percent) == ("Compile", True, 0.1)
    reasons = {(one.backend, one.precision): one.reason for one in choice.candidates}
    assert reasons[("Eager", Precision.BFLOAT16)] == (
        "refused: relative error 7.1 %, at most 2.0 % at batch 1"
    )
    assert reasons[("AOTInductor", Precision.FLOAT32)] == "refused: was ended by SIGSEGV"
    assert reasons[("OnnxRuntime", Precision.FLOAT32)] == "refused: onnxruntime is not installed"


def test_each_candidate_is_a_line_of_the_log_once_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "missing_package", lambda: "onnxruntime is not installed")
    children = Children(
        Eager_float32=Result(timing=timing(0.001)),
        Compile_float32=Result(timing=timing(0.0005)),
        Eager_bfloat16=Result(problem="relative error 7.1 %, at most 2.0 % at batch 1"),
        AOTInductor_float32="was ended by SIGSEGV",
    )
    chosen(children)
    assert children.lines[:2] == [
        "measures ways to execute the model, for up to 300 s",
        "Eager float32: 4,000 samples/s, 10 s",
    ]
    assert set(children.lines) >= {
        "Compile float32: 8,000 samples/s, 10 s",
        "Eager bfloat16: refused: relative error 7.1 %, at most 2.0 % at batch 1, 10 s",
        "AOTInductor float32: refused: was ended by SIGSEGV, 10 s",
        "OnnxRuntime float32: refused: onnxruntime is not installed",
    }
    assert children.lines[-1].startswith("proof of Compile float32: 99.8 % of 1,000 requests ")
    assert children.lines[-1].endswith(", 12 s")


def test_a_missing_provider_is_found_before_a_process_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = SimpleNamespace(get_available_providers=lambda: ["AzureExecutionProvider"])
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    monkeypatch.setattr(measuring, "missing_package", lambda: None)
    children = Children(Eager_float32=Result(timing=timing(0.001)))
    choice = chosen(children)
    assert BackendName.ONNX_RUNTIME not in {one.plan.backend for one in children.asked}
    reasons = {one.backend: one.reason for one in choice.candidates}
    assert reasons["OnnxRuntime"] == (
        "refused: this onnxruntime has no CPUExecutionProvider, only AzureExecutionProvider"
    )


def test_a_candidate_reports_nothing_and_is_not_tuned() -> None:
    children = Children(Eager_float32=Result(timing=timing(0.001)))
    chosen(children, environment={ENV_REPORT_URL: "http://operator", "HOME": "/home"})
    for environment in children.environments:
        assert ENV_REPORT_URL not in environment
        assert environment["HOME"] == "/home"
        assert json.loads(environment[ENV_SETTINGS])["mode"] == "Off"
        assert "gpujob-measure-" in environment["TMPDIR"]


def test_the_time_of_all_candidates_together_is_limited() -> None:
    children = Children(Eager_float32=Result(timing=timing(0.001)))
    children.seconds = 1000.0
    children.answers["Eager_float32"] = Result(timing=timing(0.001))
    choice = chosen(children, budget=Budget(seconds=400.0, candidate_seconds=100.0))
    assert children.time <= 400.0 + 20.0
    assert all(one.seconds <= 400.0 for one in children.limits)
    skipped = [one.reason for one in choice.candidates if "are over" in one.reason]
    assert skipped
    assert choice.backend is BackendName.EAGER


def test_without_a_reference_there_is_no_choice() -> None:
    with pytest.raises(MeasureError, match=r"the same command again, took longer than 9 s"):
        chosen(Children(Eager_float32="took longer than 9 s"))
    with pytest.raises(MeasureError, match="ended without a result, before it reached"):
        chosen(Children(Eager_float32=""))
    with pytest.raises(MeasureError, match="metric: raised"):
        chosen(Children(Eager_float32=Result(problem="metric: raised KeyError", fatal=True)))


def test_a_process_that_ends_without_a_result_is_refused_with_its_last_line() -> None:
    choice = chosen(Children(Eager_float32=Result(timing=timing(0.001)), Compile_float32=""))
    reason = next(one.reason for one in choice.candidates if one.backend == "Compile")
    assert reason == (
        "refused: ended without a result, before it reached gpujob_worker.serve: some output"
    )


def test_a_choice_that_requests_disprove_makes_room_for_the_next_one() -> None:
    children = Children(
        Eager_float32=Result(timing=timing(0.001)), Compile_float32=Result(timing=timing(0.0005))
    )
    tried: list[Plan] = []

    def prove(plan: Plan) -> str | None:
        tried.append(plan)
        return "98.1 % within the objective, 99 % are asked for" if plan == COMPILE else None

    setup = Setup(
        command=["unused"], environment={}, run=children, now=lambda: children.time, prove=prove
    )
    choice = measure(model(), examples(), SETTINGS, setup=setup)
    assert tried == [COMPILE, REFERENCE]
    assert choice.backend is BackendName.EAGER
    reason = next(one.reason for one in choice.candidates if one.backend == "Compile")
    assert reason == "refused: 98.1 % within the objective, 99 % are asked for"


def test_nothing_is_proved_twice_if_everything_is_disproved() -> None:
    children = Children(Eager_float32=Result(timing=timing(0.001)))
    tried: list[Plan] = []

    def prove(plan: Plan) -> str | None:
        tried.append(plan)
        return "too slow"

    setup = Setup(
        command=["unused"], environment={}, run=children, now=lambda: children.time, prove=prove
    )
    choice = measure(model(), examples(), SETTINGS, setup=setup)
    assert choice.backend is BackendName.EAGER
    assert len(tried) == len(set(tried))


def two_fast_ones(**seen: Result | str) -> Children:
    """Returns children of which Compile is twice as fast as the model as written."""
    children = Children(
        Eager_float32=Result(timing=timing(0.001)), Compile_float32=Result(timing=timing(0.0005))
    )
    children.seen = seen
    return children


def reason_of(choice: Choice, backend: str) -> str:
    return next(one.reason for one in choice.candidates if one.backend == backend)


def test_the_choice_is_proved_by_requests_in_a_process_of_its_own() -> None:
    children = two_fast_ones()
    choice = chosen(children)
    assert [one.plan for one in children.proofs] == [COMPILE]
    assert children.proofs[0].folder == next(
        one.folder for one in children.asked if one.plan == COMPILE
    )
    # 60 % of 4 samples in 0.5 ms would be more than a sender in the same process is for.
    assert children.proofs[0].load == Load(1000.0)
    text = "99.8 % of 1,000 requests at 1,000 a second were answered within 100 ms"
    assert text in choice.reason


def test_the_expected_rate_is_that_of_the_proof() -> None:
    children = two_fast_ones()
    chosen(children, replace(SETTINGS, expected_rate=120.0))
    assert [one.load for one in children.proofs] == [Load(120.0)]


def test_requests_that_are_late_disprove_a_choice() -> None:
    children = two_fast_ones(Compile_float32=Result(seen=Seen(sent=1000, within=970, refused=20)))
    choice = chosen(children)
    assert [one.plan for one in children.proofs] == [COMPILE, REFERENCE]
    assert choice.backend is BackendName.EAGER
    assert reason_of(choice, "Compile") == (
        "refused: 97.0 % of 1,000 requests at 1,000 a second were answered within 100 ms, "
        "99 % are needed, 20 refused"
    )
    assert "99.8 % of 1,000 requests" in choice.reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("was ended by SIGSEGV", "refused: under requests, it was ended by SIGSEGV"),
        (Result(problem="RuntimeError: no"), "refused: under requests: RuntimeError: no"),
        (Result(), "refused: under requests: no figures"),
    ],
)
def test_a_choice_that_fails_under_requests_is_disproved(answer: Result | str, reason: str) -> None:
    choice = chosen(two_fast_ones(Compile_float32=answer))
    assert choice.backend is BackendName.EAGER
    assert reason_of(choice, "Compile") == reason


def test_a_proof_without_time_disproves_nothing() -> None:
    children = two_fast_ones(Compile_float32="took longer than 30 s")
    children.proof_seconds = 1000.0
    choice = chosen(children)
    assert choice.backend is BackendName.COMPILE
    assert "not proved: the requests took longer than 30 s" in choice.reason
    late = two_fast_ones()
    late.seconds = 195.0
    choice = chosen(late, budget=Budget(seconds=200.0, proof_seconds=0.0))
    assert choice.backend is BackendName.EAGER
    assert late.proofs == []
    assert "not proved: the 200 s of the measurement are over" in choice.reason


def test_without_a_request_in_the_time_nothing_is_disproved() -> None:
    children = two_fast_ones(Compile_float32=Result(seen=Seen()))
    choice = chosen(children, replace(SETTINGS, expected_rate=0.01))
    assert choice.backend is BackendName.COMPILE
    assert "not proved: no request in 10 s at 0.01 a second" in choice.reason


def test_figures_of_a_disproved_plan_are_not_those_of_the_last_resort() -> None:
    late = Result(seen=Seen(sent=1000, within=970))
    choice = chosen(two_fast_ones(Compile_float32=late, Eager_float32=late))
    assert choice.backend is BackendName.EAGER
    assert choice.reason == "no backend keeps the objective"
    assert reason_of(choice, "Compile").startswith("refused: 97.0 % of 1,000 requests")


def test_the_last_resort_is_not_proved() -> None:
    children = Children(Eager_float32=Result(timing=timing(5.0)))
    choice = chosen(children)
    assert "no backend keeps the objective" in choice.reason
    assert children.proofs == []


def test_time_is_kept_for_the_proof() -> None:
    children = two_fast_ones()
    children.seconds = 110.0
    chosen(children, budget=Budget(seconds=220.0, candidate_seconds=150.0))
    # Candidates took all the time that they may take, but for less than one needs.
    left = 220.0 - 30.0 - 110.0 - sum(one.seconds for one in children.limits[1:-1])
    assert 0 <= left < 20
    assert len(children.proofs) == 1
    assert children.limits[-1].seconds >= 30.0
    assert children.time <= 220.0
    assert Budget(seconds=50.0).kept_seconds == 10.0
    assert Budget().kept_seconds == 30.0


def test_a_slow_precision_is_not_compiled() -> None:
    children = Children(
        Eager_float32=Result(timing=timing(0.001)), Eager_bfloat16=Result(timing=timing(0.01))
    )
    chosen(children)
    plans = [one.plan for one in children.asked]
    assert LOWER in plans
    assert Plan(BackendName.COMPILE, Precision.BFLOAT16) not in plans
    assert COMPILE in plans


def test_candidates_get_the_sizes_that_the_reference_could_run() -> None:
    children = Children(Eager_float32=Result(timing=Timing(timing(0.001).sizes[:2], 1, 1.0)))
    chosen(children)
    assert children.asked[0].sizes == (1, 2, 4)
    assert all(one.sizes == (1, 2) for one in children.asked[1:])


def test_the_chosen_file_is_kept_in_the_cache_folder(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    children = Children(
        Eager_float32=Result(timing=timing(0.001), model="m"),
        AOTInductor_float32=Result(timing=timing(0.0001), model="m", artifact="model.pt2"),
    )
    assert chosen(children, environment={ENV_SERVING_CACHE: str(cache)}).backend is (
        BackendName.AOT_INDUCTOR
    )
    assert [path.read_text() for path in cache.glob("*/model.pt2")] == ["compiled"]


def test_few_samples_are_stated_and_too_few_are_an_error(tmp_path: Path) -> None:
    children = Children(Eager_float32=Result(timing=timing(0.001)))
    setup = Setup(command=["unused"], environment={}, run=children)
    choice = measure(model(), examples(20), SETTINGS, setup=setup)
    assert "compared on 20 samples, 256 are better" in choice.reason
    with pytest.raises(InputError, match=r"examples: a measurement needs at least 8 samples"):
        measure(model(), examples(3), SETTINGS, setup=setup)
    with pytest.raises(InputError, match=r"examples: there is no file .*save_file"):
        measure(model(), tmp_path / "missing.safetensors", SETTINGS, setup=setup)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"not tensors")
    with pytest.raises(InputError, match=r"examples: .* is not a file of safetensors"):
        measure(model(), damaged, SETTINGS, setup=setup)


def assignment(tmp_path: Path, plan: Plan = REFERENCE, folder: str = "reference") -> Assignment:
    own, reference = tmp_path / folder, tmp_path / "reference"
    own.mkdir()
    work = Work(warm_ups=1, batches_max=3, size_seconds=0.5, clock_seconds=2.0)
    return Assignment(
        str(own),
        str(reference),
        plan.backend,
        plan.precision,
        plan.quantization,
        (1, 2, 4),
        work,
        SETTINGS,
    )


def measured(
    tmp_path: Path,
    plan: Plan,
    subject: nn.Module | None = None,
    metric: Metric | None = None,
) -> Result:
    """Measures the reference and a plan in this process."""
    first = assignment(tmp_path)
    measure_plan(first, model(), examples(), metric).write(tmp_path / "reference")
    second = assignment(tmp_path, plan, "candidate")
    return measure_plan(second, subject or model(), examples(), metric)


def test_a_lower_precision_is_measured_with_its_error(tmp_path: Path) -> None:
    result = measured(tmp_path, LOWER, metric=lambda _: 1.0)
    assert result.problem is None
    assert result.relative_error_percent is not None
    assert 0.05 < result.relative_error_percent < 2.0
    assert [one.size for one in result.timing.sizes] == [1, 2, 4]
    assert result.timing.memory_bytes > 0
    text = Result.read(tmp_path / "reference")
    assert text is not None
    assert text.metric == 1.0


@pytest.mark.parametrize("plan", [REFERENCE, LOWER])
def test_a_plan_answers_requests_through_the_batcher(tmp_path: Path, plan: Plan) -> None:
    load = Load(1000.0, requests_max=20)
    given = replace(assignment(tmp_path, plan), load=load, settings=SETTINGS)
    result = measure_plan(given, model(), examples())
    assert result.problem is None
    assert result.seen is not None
    # How many were in time depends on the machine.
    assert 1 <= result.seen.sent <= 20
    assert result.seen.failed == 0


def test_int8_weights_are_measured(tmp_path: Path) -> None:
    plan = Plan(BackendName.EAGER, Precision.FLOAT32, Quantization.INT8)
    result = measured(tmp_path, plan)
    assert result.relative_error_percent is not None
    assert result.relative_error_percent > 0.1


def test_another_model_than_the_reference_is_named(tmp_path: Path) -> None:
    torch.manual_seed(7)
    other = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    problem = measured(tmp_path, LOWER, other).problem
    assert problem is not None
    assert "load its weights from a file, or set a seed" in problem


def test_stored_answers_that_changed_are_not_compared_with(tmp_path: Path) -> None:
    measure_plan(assignment(tmp_path), model(), examples()).write(tmp_path / "reference")
    path = tmp_path / "reference" / "reference.safetensors"
    save_file({name: 2 * out for name, out in load_file(path).items()}, path)
    with pytest.raises(RuntimeError, match="are not those that it gave"):
        measure_plan(assignment(tmp_path, LOWER, "candidate"), model(), examples())


def test_a_model_that_mixes_its_batch_ends_the_measurement(tmp_path: Path) -> None:
    class Mixing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.mean(0, keepdim=True)

    result = measure_plan(assignment(tmp_path), Mixing(), examples())
    assert result.fatal
    assert result.problem is not None
    assert "answers differently alone and in a batch" in result.problem


def test_a_metric_that_raises_on_the_reference_ends_the_measurement(tmp_path: Path) -> None:
    def metric(_: object) -> float:
        raise KeyError("labels")

    result = measure_plan(assignment(tmp_path), model(), examples(), metric)
    assert result.fatal
    assert result.problem == "metric: raised KeyError on the model as written: 'labels'"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"timing": 3}', '{"problem": 7}'])
def test_a_result_that_is_none_is_not_read(tmp_path: Path, text: str) -> None:
    (tmp_path / RESULT).write_text(text)
    assert Result.read(tmp_path) is None


def test_a_process_that_is_no_candidate_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_CANDIDATE, raising=False)
    run_candidate_if_asked(model(), examples())


def run_script(tmp_path: Path, mode: str) -> str:
    found = tmp_path / "found"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(found)],
        env={**os.environ, "MODE": mode},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return found.read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_script_is_run_again_for_each_candidate(tmp_path: Path) -> None:
    lines = run_script(tmp_path, "").splitlines()
    assert lines[0].startswith("chosen: Eager")
    assert sorted(line.split()[0] for line in lines[1:]) == ["bfloat16:", "float32:"]
    assert all("True" in line for line in lines[1:])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_candidate_that_crashes_is_refused(tmp_path: Path) -> None:
    assert "bfloat16: False refused: was ended by SIGSEGV" in run_script(tmp_path, "crash")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_plans_that_are_late_under_requests_are_refused(tmp_path: Path) -> None:
    first, *candidates = run_script(tmp_path, "late").splitlines()
    assert first == "chosen: Eager no backend keeps the objective"
    for line in candidates:
        assert "False refused: 0.0 % of " in line
        assert "were answered within 100 ms, 99 % are needed" in line


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_candidate_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    text = run_script(tmp_path, "early")
    assert "before it reached gpujob_worker.serve: the file of the weights is gone" in text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_script_without_a_seed_is_told_why(tmp_path: Path) -> None:
    assert "bfloat16: False refused: the script made another model" in run_script(
        tmp_path, "no seed"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_metric_that_raises_is_an_error_of_the_measurement(tmp_path: Path) -> None:
    text = run_script(tmp_path, "metric")
    assert text == "error: metric: raised KeyError on the model as written: 'labels'"
