"""Whether the choice of a backend finds the fastest valid one, and refuses each wrong one.

    python -m bench.backends [--models mlp,cnn] [--rate 200] [--seconds 300] [--guard-only]
        [--device cuda --choice-only]

For each of five small models, `gpujob_worker`'s measurement runs as in a GPUJob: every candidate in
a process of its own, within `--seconds`. `of_best` compares the choice with the full grid, which is
timed afterwards in one process, in turns: every plan that builds here and answers alike, also those
that the measurement skipped or ended. It is the device time a sample at the best size within the
objective. Its goal is 0.97. 20 wrong backends and 5 that only round differently are
then judged on every model, on the CPU: goals 0 accepted and 0 refused. All of it on one thread.
With `--choice-only` neither of both, which take as long again: the candidates are printed with the
samples a second that the measurement itself found.
"""

import argparse
import copy
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from bench.backends_models import MODELS, Subject, subject
from bench.backends_wrong import HARMLESS, WRONG
from bench.machine import print_result
from bench.table import format_table
from gpujob_api.serving import (
    Accuracy,
    Batching,
    Candidate,
    Choice,
    Objective,
    ServingSettings,
)
from gpujob_worker.serving.backend import Backend
from gpujob_worker.serving.backends.build import build
from gpujob_worker.serving.choosing.assignment import Work
from gpujob_worker.serving.choosing.candidate_process import answer_all, run_candidate_if_asked
from gpujob_worker.serving.choosing.candidates import plans
from gpujob_worker.serving.choosing.candidates import sizes as batch_sizes
from gpujob_worker.serving.choosing.choose import Demand, Measured, choose
from gpujob_worker.serving.choosing.clock import DeviceTimer
from gpujob_worker.serving.choosing.guard import Reference, judge, noise_of
from gpujob_worker.serving.choosing.measure import Budget, Setup, measure
from gpujob_worker.serving.choosing.timing import SizeTime, Timing
from gpujob_worker.serving.eager import EagerBackend
from gpujob_worker.serving.plan import REFERENCE as EAGER
from gpujob_worker.serving.plan import Plan
from gpujob_worker.serving.rows import first_rows
from gpujob_worker.serving.signature import signature

GOAL_OF_BEST, GOAL_SECONDS = 0.97, 300.0
ENV_MODEL, ENV_DEVICE = "BENCH_BACKENDS_MODEL", "BENCH_BACKENDS_DEVICE"
MAX_SIZE = 16
ROUNDS = 40
COLUMNS = ("model", "chosen", "of_best", "best", "candidates", "accepted", "seconds")
CANDIDATES = ("candidate", "accepted", "samples_s", "error_percent", "mib", "reason")
CELLS = ("model", "candidate", "size", "ms", "speed")
GUARD = ("model", "wrong", "accepted", "harmless", "refused")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.backends", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rate", type=float, default=None)
    parser.add_argument("--objective", type=float, default=100.0, help="milliseconds")
    parser.add_argument("--seconds", type=float, default=GOAL_SECONDS)
    parser.add_argument("--guard-only", action="store_true")
    parser.add_argument("--choice-only", action="store_true", help="no wrong ones, no grid")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    # Candidates have sessions of their own, and are ended by the measurement.
    signal.signal(signal.SIGTERM, _leave)
    torch.set_num_threads(1)
    names = options.models.split(",")
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"argument --models: {unknown[0]!r} is none of {', '.join(MODELS)}")
    settings = ServingSettings(
        objective=Objective(options.objective),
        batching=Batching(max_size=MAX_SIZE),
        expected_rate=options.rate,
    )
    if options.choice_only:
        return _print_choices(names, settings, options)
    guard = [_judge_injected(name) for name in names]
    print("Wrong and harmless backends")
    print(format_table(guard, GUARD))
    rows: list[dict[str, Any]] = []
    cells: list[dict[str, Any]] = []
    for name in [] if options.guard_only else names:
        row, timed = _choose_and_compare(name, settings, options.seconds, options.device)
        rows.append(row)
        cells += timed
        print(format_table([row], COLUMNS), file=sys.stderr)
    if rows:
        print("The grid: milliseconds a batch, and the speed by that of the model as written")
        print(format_table(cells, CELLS))
        print("Choices")
        print(format_table(rows, COLUMNS))
    goals = _goals(guard, rows)
    for line in goals:
        print(line)
    load = os.getloadavg()[0]
    print_result(
        rows,
        bench="backends",
        device=options.device,
        guard=guard,
        grid=cells,
        goals=goals,
        load=load,
        rate=options.rate,
    )
    return 0


def _print_choices(
    names: Sequence[str], settings: ServingSettings, options: argparse.Namespace
) -> int:
    """Chooses for each model. The samples a second are at each candidate's best size."""
    rows: list[dict[str, Any]] = []
    for name in names:
        choice, took = _choose(subject(name), name, settings, options.seconds, options.device)
        listed = [_candidate_row(one) for one in choice.candidates]
        print(f"{name}: {choice.reason}")
        print(format_table(listed, CANDIDATES))
        chosen = str(Plan(choice.backend, choice.precision, choice.quantization))
        row = {"model": name, "chosen": chosen, "seconds": round(took, 1)}
        rows.append({**row, "candidates": listed, "reason": choice.reason})
    longest = max(row["seconds"] for row in rows)
    met = _unmet(longest <= GOAL_SECONDS)
    goals = [f"longest measurement: {longest:.0f} s (goal {GOAL_SECONDS:.0f}){met}"]
    print(goals[0])
    print_result(rows, bench="backends", device=options.device, goals=goals, rate=options.rate)
    return 0


def _candidate_row(one: Candidate) -> dict[str, Any]:
    speed = one.samples_per_second
    return {
        "candidate": _label(one),
        "accepted": one.accepted,
        "samples_s": None if speed is None else round(speed),
        "error_percent": one.relative_error_percent,
        "mib": None if one.memory_bytes is None else round(one.memory_bytes / 1024**2),
        "reason": one.reason[:160],
    }


def _goals(guard: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> list[str]:
    accepted = sum(row["accepted"] for row in guard)
    refused = sum(row["refused"] for row in guard)
    wrong = sum(row["wrong"] for row in guard)
    harmless = sum(row["harmless"] for row in guard)
    lines = [
        f"wrong backends accepted: {accepted} of {wrong} (goal 0){_unmet(accepted == 0)}",
        f"harmless backends refused: {refused} of {harmless} (goal 0){_unmet(refused == 0)}",
    ]
    if rows:
        least = min(row["of_best"] for row in rows)
        mean = statistics.fmean(row["of_best"] for row in rows)
        longest = max(row["seconds"] for row in rows)
        met = _unmet(least >= GOAL_OF_BEST)
        lines += [
            f"of the best valid cell: least {least:.3f}, mean {mean:.3f}"
            f" (goal {GOAL_OF_BEST} in each){met}",
            f"longest measurement: {longest:.0f} s (goal {GOAL_SECONDS:.0f})"
            f"{_unmet(longest <= GOAL_SECONDS)}",
        ]
    return lines


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _unmet(is_met: bool) -> str:
    return "" if is_met else ": not met"


def _judge_injected(name: str) -> dict[str, Any]:
    """Judges each injected backend as a measurement does."""
    found = subject(name)
    reference = _reference(found)
    sizes = tuple(1 << power for power in range(MAX_SIZE.bit_length()))

    def problem(make: Any) -> str | None:
        run = make(copy.deepcopy(found.model))
        return judge(run, reference, sizes, Accuracy()).problem

    reasons = {kind: problem(make) for kind, make in WRONG.items()}
    harmless = {kind: problem(make) for kind, make in HARMLESS.items()}
    return {
        "model": name,
        "wrong": len(WRONG),
        "accepted": sum(reason is None for reason in reasons.values()),
        "harmless": len(HARMLESS),
        "refused": sum(reason is not None for reason in harmless.values()),
        "reasons": reasons | harmless,
    }


def _choose(
    found: Subject, name: str, settings: ServingSettings, seconds: float, device: str
) -> tuple[Choice, float]:
    """Returns the choice and its seconds. The model is on the device afterwards."""
    found.model.to(device)
    setup = Setup(
        command=[sys.executable, "-m", "bench.backends_candidate"],
        environment={
            **os.environ,
            ENV_MODEL: name,
            ENV_DEVICE: device,
            "OMP_NUM_THREADS": "1",
        },
        budget=Budget(seconds=seconds),
        work=Work(size_seconds=0.8, clock_seconds=4.0),
    )
    start = time.monotonic()
    choice = measure(found.model, found.inputs, settings, setup=setup)
    took = time.monotonic() - start
    # The measurement left the device to its candidates.
    found.model.to(device)
    return choice, took


def _choose_and_compare(
    name: str, settings: ServingSettings, seconds: float, device: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = subject(name)
    choice, took = _choose(found, name, settings, seconds, device)
    timings = _grid(found, settings, cuda=device == "cuda")
    demand = Demand(settings.objective, settings.expected_rate)
    best = choose([Measured(plan, timing) for plan, timing in timings.items()], demand).plan
    ours = Plan(choice.backend, choice.precision, choice.quantization)
    cost = {plan: _cost(timing, demand) for plan, timing in timings.items()}
    row = {
        "model": name,
        "chosen": str(ours),
        # The best one of the grid may be dearer by the width of a tie.
        "of_best": min(cost.values()) / cost[ours],
        "best": str(best),
        "candidates": len(choice.candidates),
        "accepted": sum(one.accepted for one in choice.candidates),
        "seconds": round(took, 1),
        "refusals": {_label(one): one.reason for one in choice.candidates if not one.accepted},
        "reason": choice.reason,
    }
    written = timings[Plan(EAGER.backend)]
    eager = {one.size: one.seconds for one in written.sizes}
    cells = [
        {
            "model": name,
            "candidate": str(plan),
            "size": one.size,
            "ms": 1000 * one.seconds,
            "speed": eager[one.size] / one.seconds,
        }
        for plan, timing in timings.items()
        for one in timing.sizes
    ]
    return row, cells


def _label(one: Candidate) -> str:
    return f"{one.backend} {one.precision.value} {one.quantization.value}"


def _cost(timing: Timing, demand: Demand) -> float:
    """Returns device seconds a sample at the best size within the objective."""
    plan = EAGER
    costs: list[float] = []
    for one in timing.sizes:
        alone = Timing((one,), timing.memory_bytes, timing.start_seconds)
        if not choose([Measured(plan, alone)], demand).fallback:
            costs.append(one.seconds / one.size)
    return min(costs, default=float("inf"))


def _grid(found: Subject, settings: ServingSettings, *, cuda: bool) -> dict[Plan, Timing]:
    """Times all plans that build here and answer alike, in turns, in this process.

    That includes those for which the measurement had no time.
    """
    shape = signature(found.model, found.inputs)
    reference = _reference(found)
    sizes = batch_sizes(settings, cuda=cuda)
    with tempfile.TemporaryDirectory(prefix="bench-backends-") as folder:
        backends: dict[Plan, Backend] = {}
        for plan in (EAGER, *plans(settings, cuda=cuda)):
            own = Path(folder) / str(plan).replace(" ", "-")
            own.mkdir()
            try:
                backend = build(plan, found.model, shape, found.inputs, sizes, own)
            except Exception as error:
                print(f"{plan} does not build here: {error}", file=sys.stderr)
                continue
            problem = judge(backend.run, reference, sizes, settings.accuracy).problem
            if problem is None:
                backends[plan] = backend
        return _in_turns(found, backends, sizes)


def _in_turns(
    found: Subject, backends: dict[Plan, Backend], sizes: tuple[int, ...]
) -> dict[Plan, Timing]:
    timer = DeviceTimer(torch.device("cpu"))
    order = list(backends)
    timings: dict[Plan, list[SizeTime]] = {plan: [] for plan in order}
    for size in sizes:
        batch = first_rows(found.inputs, size)
        seconds: dict[Plan, list[float]] = {plan: [] for plan in order}
        for number in range(ROUNDS):
            for plan in order if number % 2 else order[::-1]:
                start = timer.now()
                backends[plan].run(batch)
                seconds[plan].append(timer.now() - start)
        written = statistics.median(seconds[EAGER])
        for plan, values in seconds.items():
            middle = statistics.median(values)
            timings[plan].append(SizeTime(size, middle, middle, written, len(values)))
    return {plan: Timing(tuple(times)) for plan, times in timings.items()}


def _reference(found: Subject) -> Reference:
    eager = EagerBackend(found.model, signature(found.model, found.inputs))
    few = first_rows(found.inputs, 32)
    noise = noise_of(answer_all(eager, few, MAX_SIZE), answer_all(eager, few, 1))
    return Reference(found.inputs, answer_all(eager, found.inputs, MAX_SIZE), noise)


def candidate() -> int:
    """The script of a candidate process: makes the model, and measures where it would serve."""
    found = subject(os.environ[ENV_MODEL])
    found.model.to(os.environ.get(ENV_DEVICE, "cpu"))
    run_candidate_if_asked(found.model, found.inputs)
    return 1


if __name__ == "__main__":
    sys.exit(main())
