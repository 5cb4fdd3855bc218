"""Measures every way to execute a model that the settings allow, and chooses one.

The script is run again in one process a plan (`candidate_process`), one after another, so that each
has the device to itself. The reference runs first. This process only waits and compares. What it
chooses is proved by requests, in one more process, before it is reported.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from gpujob_api.serving import (
    ENV_SERVING_CACHE,
    BackendName,
    Candidate,
    Choice,
    ServingSettings,
)
from gpujob_api.settings import (
    ENV_CHECKPOINT_DIRECTORY,
    ENV_MEMORY_LIMIT_BYTES,
    ENV_REPORT_URL,
    ENV_SETTINGS,
    ENV_TERMINATION_FILE,
    OptimizeMode,
    Settings,
)
from gpujob_worker.run.standard_error import say
from gpujob_worker.serving.backends.answering import device_of
from gpujob_worker.serving.backends.build_error import BuildError
from gpujob_worker.serving.backends.onnx_runtime import missing_package, provider_of
from gpujob_worker.serving.choosing.artifacts import Artifacts
from gpujob_worker.serving.choosing.assignment import (
    ENV_CANDIDATE,
    RESULT,
    Assignment,
    Result,
    Work,
)
from gpujob_worker.serving.choosing.calibration import calibration
from gpujob_worker.serving.choosing.candidates import ordered, plans, sizes, skip_reason
from gpujob_worker.serving.choosing.children import Ended, Limits, command_again, run_child
from gpujob_worker.serving.choosing.choose import Chosen, Demand, Measured, choose
from gpujob_worker.serving.choosing.identity import artifact_key, surroundings
from gpujob_worker.serving.choosing.proof import load_for
from gpujob_worker.serving.choosing.requests import Load, problem, text
from gpujob_worker.serving.choosing.timing import Timing, fit, level, levelled
from gpujob_worker.serving.examples import Examples
from gpujob_worker.serving.plan import REFERENCE, Plan

# A candidate process reports nothing and is not tuned: the run is that of this process.
_NOT_FOR_CANDIDATES = (ENV_REPORT_URL, ENV_TERMINATION_FILE, ENV_CHECKPOINT_DIRECTORY)
_CHILD_SECONDS_MIN = 20.0
_ONNX = (BackendName.ONNX_RUNTIME, BackendName.TENSOR_RT)


class MeasureError(RuntimeError):
    """Nothing can be measured. The message is for the report."""


class RunChild(Protocol):
    def __call__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        limits: Limits,
    ) -> Ended: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """Time of a whole measurement, of one candidate in it, and of the part that is kept for the
    proof of the choice, a fifth at most. Disk of one candidate.
    """

    seconds: float = 300.0
    candidate_seconds: float = 120.0
    proof_seconds: float = 30.0
    disk_bytes: int = 8 * 1024**3

    @property
    def kept_seconds(self) -> float:
        return min(self.proof_seconds, self.seconds / 5)


@dataclass(frozen=True, slots=True)
class Setup:
    """How candidates are started. The defaults run this process's own command again."""

    command: Sequence[str] = field(default_factory=command_again)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    budget: Budget = field(default_factory=Budget)
    work: Work = field(default_factory=Work)
    run: RunChild = run_child
    now: Callable[[], float] = time.monotonic
    # Takes the place of the proof by requests: returns why a plan is refused after all.
    prove: Callable[[Plan], str | None] | None = None
    # Takes a line of progress.
    log: Callable[[str], None] = lambda line: say(f"gpujob: {line}")


@dataclass(slots=True)
class _Found:
    """What is known so far. Every plan ends in `results` or in `refusals`."""

    results: dict[Plan, Result] = field(default_factory=dict)
    refusals: dict[Plan, str] = field(default_factory=dict)


def measure(
    model: nn.Module,
    examples: Examples,
    settings: ServingSettings,
    *,
    setup: Setup | None = None,
) -> Choice:
    """Returns the choice, the chosen candidate first. Takes at most the budget.

    Raises `InputError` for calibration samples that show nothing, and `MeasureError` if the model
    as written cannot be run by the same command again. Call it at the place of the script where
    candidates call `run_candidate_if_asked`, and with the same arguments.
    """
    setup = setup or Setup()
    samples = calibration(examples)
    device = device_of(model)
    if device.type == "cuda":
        # The candidates get the whole reservation.
        model.to("cpu")
        torch.cuda.empty_cache()
    start = setup.now()
    with tempfile.TemporaryDirectory(prefix="gpujob-measure-") as name:
        found = _run_all(Path(name), device, settings, setup)
        levels = level([one.timing for one in found.results.values()])
        measured = [
            Measured(plan, levelled(result.timing, levels))
            for plan, result in found.results.items()
            if result.problem is None
        ]
        demand = Demand(settings.objective, settings.expected_rate, _memory_limit(setup))
        timings = {one.plan: one.timing for one in measured}
        end = start + setup.budget.seconds
        prover = _Prover(Path(name), timings, found, settings, setup, end)
        chosen = _chosen(measured, demand, setup.prove or prover.problem)
        _keep_artifact(Path(name), chosen.plan, found, device, settings, setup)
    seconds = setup.now() - start
    reason = "; ".join(part for part in (chosen.reason, prover.note, samples.note) if part)
    listed = _candidates(found, chosen, timings)
    where = _device_name(device)
    plan = chosen.plan
    return Choice(plan.backend, plan.precision, plan.quantization, where, seconds, reason, listed)


def _chosen(
    measured: Sequence[Measured], demand: Demand, prove: Callable[[Plan], str | None]
) -> Chosen:
    """Returns the first choice that is proved. Each plan is tried once."""
    disproved: dict[Plan, str] = {}
    while True:
        left = [one for one in measured if one.plan not in disproved]
        chosen = choose(left, demand)
        plan = chosen.plan
        reason = None if chosen.fallback else prove(plan)
        if reason is None:
            return replace(chosen, refusals={**chosen.refusals, **disproved})
        disproved[plan] = f"refused: {reason}"


class _Prover:
    """Proves choices by requests, in the same way and within the same time as they are measured.

    `note` is about the last proof that disproved nothing.
    """

    def __init__(
        self,
        folder: Path,
        timings: Mapping[Plan, Timing],
        found: _Found,
        settings: ServingSettings,
        setup: Setup,
        end: float,
    ) -> None:
        self._folder = folder
        self._timings = timings
        self._found = found
        self._settings = settings
        self._setup = setup
        self._end = end
        self.note = ""

    def problem(self, plan: Plan) -> str | None:
        """Returns why the plan is refused after all, or None.

        A proof for which the time is too short disproves nothing.
        """
        started = self._setup.now()
        reason = self._problem(plan)
        outcome = self.note if reason is None else f"refused: {reason}"
        self._setup.log(f"proof of {plan}: {outcome}, {self._setup.now() - started:.0f} s")
        return reason

    def _problem(self, plan: Plan) -> str | None:
        self.note = ""
        left = self._end - self._setup.now()
        budget = self._setup.budget
        if left < min(_CHILD_SECONDS_MIN, budget.seconds / 5):
            self.note = f"not proved: the {budget.seconds:.0f} s of the measurement are over"
            return None
        load = load_for(self._timings[plan], self._settings)
        seconds = min(left, budget.candidate_seconds)
        reference = self._found.results[REFERENCE]
        sizes = tuple(one.size for one in reference.timing.sizes)
        _unlink_result(self._folder, plan)
        started = self._setup.now()
        result = _run_one(self._folder, plan, sizes, self._settings, self._setup, seconds, load)
        if isinstance(result, str):
            if self._setup.now() - started >= seconds:
                self.note = f"not proved: the requests {result}"
                return None
            return f"under requests, it {result}"
        if result.problem is not None or result.seen is None:
            return f"under requests: {result.problem or 'no figures'}"
        if result.seen.sent == 0:
            self.note = (
                f"not proved: no request in {load.seconds_max:g} s at {load.rate_text} a second"
            )
            return None
        objective = self._settings.objective
        reason = problem(result.seen, load, objective)
        if reason is None:
            self.note = text(result.seen, load, objective)
        return reason


def _run_all(folder: Path, device: torch.device, settings: ServingSettings, setup: Setup) -> _Found:
    cuda = device.type == "cuda"
    end = setup.now() + setup.budget.seconds - setup.budget.kept_seconds
    found = _Found()
    batch_sizes = sizes(settings, cuda=cuda)
    setup.log(f"measures ways to execute the model, for up to {setup.budget.seconds:.0f} s")
    started = setup.now()
    reference = _run_one(folder, REFERENCE, batch_sizes, settings, setup, setup.budget.seconds)
    if isinstance(reference, str):
        raise MeasureError(f"the model as written, run by the same command again, {reference}")
    if reference.problem is not None:
        raise MeasureError(reference.problem)
    found.results[REFERENCE] = reference
    setup.log(_line(REFERENCE, reference, setup.now() - started))
    # The reference ended with the sizes that its time and memory allowed.
    batch_sizes = tuple(one.size for one in reference.timing.sizes) or batch_sizes[:1]
    every = {plan: _missing(plan, device) for plan in plans(settings, cuda=cuda)}
    found.refusals = {plan: missing for plan, missing in every.items() if missing is not None}
    for plan, refusal in found.refusals.items():
        setup.log(f"{plan}: {refusal}")
    waiting = [plan for plan in every if plan not in found.refusals]
    speeds: dict[Plan, float] = {}
    while waiting:
        waiting = ordered(waiting, speeds)
        plan = waiting.pop(0)
        reason = skip_reason(plan, speeds)
        left = end - setup.now()
        share = max(_CHILD_SECONDS_MIN, 2 * left / (len(waiting) + 1))
        seconds = min(left, setup.budget.candidate_seconds, share)
        if reason is None and left < _CHILD_SECONDS_MIN:
            reason = f"skipped: the {setup.budget.seconds:.0f} s of the measurement are over"
        if reason is not None:
            found.refusals[plan] = reason
            setup.log(f"{plan}: {reason}")
            continue
        started = setup.now()
        result = _run_one(folder, plan, batch_sizes, settings, setup, seconds)
        setup.log(_line(plan, result, setup.now() - started))
        if isinstance(result, str):
            found.refusals[plan] = f"refused: {result}"
            continue
        found.results[plan] = result
        if result.problem is not None:
            found.refusals[plan] = f"refused: {result.problem}"
        elif result.timing.sizes:
            speeds[plan] = _speed(result.timing)
    return found


def _line(plan: Plan, result: "Result | str", seconds: float) -> str:
    """Returns the line of the log about one candidate. `seconds` is the time that it took."""
    problem = result if isinstance(result, str) else result.problem
    if problem is not None or isinstance(result, str):
        outcome = f"refused: {problem}"
    else:
        best = max((one.size / max(one.seconds, 1e-9) for one in result.timing.sizes), default=0.0)
        outcome = f"{best:,.0f} samples/s"
    return f"{plan}: {outcome}, {seconds:.0f} s"


def _run_one(
    folder: Path,
    plan: Plan,
    batch_sizes: tuple[int, ...],
    settings: ServingSettings,
    setup: Setup,
    seconds: float,
    load: Load | None = None,
) -> "Result | str":
    """Returns the result, or why there is none: it completes "the candidate ..."."""
    own = _folder_of(folder, plan)
    own.mkdir(exist_ok=load is not None)
    temporary = own / "tmp"
    temporary.mkdir(exist_ok=load is not None)
    assignment = Assignment(
        str(own),
        str(_folder_of(folder, REFERENCE)),
        plan.backend,
        plan.precision,
        plan.quantization,
        batch_sizes,
        setup.work,
        settings,
        load,
    )
    environment = {
        name: value for name, value in setup.environment.items() if name not in _NOT_FOR_CANDIDATES
    }
    environment[ENV_SETTINGS] = Settings(mode=OptimizeMode.OFF).to_text()
    environment[ENV_CANDIDATE] = assignment.to_text()
    environment["TMPDIR"] = str(temporary)
    # Compilers share headers that they compile first. All of it is removed at the end.
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    limits = Limits(seconds, _resident_limit(setup), setup.budget.disk_bytes)
    ended = setup.run(setup.command, environment, folder, limits)
    result = Result.read(own)
    if ended.problem is not None:
        return ended.problem
    if result is None:
        last = ended.tail.strip().splitlines()[-1:] or ["nothing was printed"]
        return f"ended without a result, before it reached gpujob_worker.serve: {last[0][:200]}"
    return result


def _folder_of(folder: Path, plan: Plan) -> Path:
    return folder / str(plan).replace(" ", "-")


def _unlink_result(folder: Path, plan: Plan) -> None:
    """Removes the figures of the measurement, so that they are not taken for those of the proof."""
    (_folder_of(folder, plan) / RESULT).unlink(missing_ok=True)


def _missing(plan: Plan, device: torch.device) -> str | None:
    """Returns what ONNX Runtime lacks here, so that no process is started to find it."""
    if plan.backend not in _ONNX:
        return None
    missing = missing_package()
    if missing is None:
        try:
            provider_of(plan.backend, plan.precision, device)
        except BuildError as error:
            missing = str(error)
    return None if missing is None else f"refused: {missing}"


def _speed(timing: Timing) -> float:
    """Returns the ratio of the best throughputs over all sizes, by that of the model as written."""
    ours = max(one.size / max(one.seconds, 1e-9) for one in timing.sizes)
    written = max(one.size / max(one.eager_seconds, 1e-9) for one in timing.sizes)
    return ours / written


def _memory_limit(setup: Setup) -> int | None:
    text = setup.environment.get(ENV_MEMORY_LIMIT_BYTES, "")
    return int(text) if text.isdigit() else None


def _resident_limit(setup: Setup) -> int | None:
    """Returns the host memory that a candidate may use: what is free now, less a tenth."""
    del setup
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith("MemAvailable:")), None)
    return None if line is None else int(0.9 * 1024 * int(line.split()[1]))


def _keep_artifact(
    folder: Path,
    plan: Plan,
    found: _Found,
    device: torch.device,
    settings: ServingSettings,
    setup: Setup,
) -> None:
    """Puts the chosen backend's file into the cache folder, from which replicas load it."""
    cache = setup.environment.get(ENV_SERVING_CACHE, "")
    result = found.results.get(plan)
    if not cache or result is None or result.artifact is None:
        return
    # The sizes are part of the key, so they are those that a replica computes.
    batch_sizes = tuple(one.size for one in found.results[REFERENCE].timing.sizes)
    if batch_sizes != sizes(settings, cuda=device.type == "cuda"):
        return
    key = artifact_key(result.model, plan, batch_sizes, surroundings(device))
    Artifacts(Path(cache)).put(key, _folder_of(folder, plan) / result.artifact)


def _candidates(
    found: _Found, chosen: Chosen, timings: Mapping[Plan, Timing]
) -> tuple[Candidate, ...]:
    """Returns all plans as in a report: the chosen one, then the fastest first, then refused."""
    listed: list[Candidate] = []
    for plan in dict.fromkeys((*found.results, *found.refusals)):
        result = found.results.get(plan)
        reason = found.refusals.get(plan, "")
        one = Candidate(
            plan.backend.value, plan.precision, not reason, reason, quantization=plan.quantization
        )
        if result is not None:
            one = replace(
                one,
                relative_error_percent=result.relative_error_percent,
                agreement_percent=result.agreement_percent,
            )
        timing = timings.get(plan)
        if timing is not None and timing.sizes:
            one = replace(
                one,
                accepted=plan not in chosen.refusals,
                reason=chosen.refusals.get(plan, ""),
                samples_per_second=max(t.size / max(t.seconds, 1e-9) for t in timing.sizes),
                time=fit([(t.size, t.seconds) for t in timing.sizes]),
                memory_bytes=timing.memory_bytes,
            )
        listed.append(one)
    first = chosen.plan
    listed.sort(
        key=lambda one: (
            (one.backend, one.precision, one.quantization)
            != (first.backend.value, first.precision, first.quantization),
            not one.accepted,
            -(one.samples_per_second or 0.0),
        )
    )
    return tuple(listed)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {torch.backends.cpu.get_cpu_capability()}"
