"""One candidate process: the script, run again, which measures one plan where it would serve.

The process ends here, so nothing that a build leaves behind reaches a server: threads, memory,
compilers, process-wide settings.
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from gpujob_api.settings import ENV_MEMORY_LIMIT_BYTES
from gpujob_worker.device.memory import CpuMemory
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.backends.answering import device_of
from gpujob_worker.serving.backends.build import FILES, build
from gpujob_worker.serving.choosing.assignment import (
    REFERENCE_FILE,
    Assignment,
    NoiseFigures,
    Result,
)
from gpujob_worker.serving.choosing.calibration import calibration
from gpujob_worker.serving.choosing.clock import DeviceTimer, Effort, clock
from gpujob_worker.serving.choosing.guard import (
    Metric,
    Noise,
    Reference,
    judge,
    neighbour_problem,
    noise_of,
)
from gpujob_worker.serving.choosing.identity import model_hash, tensors_hash
from gpujob_worker.serving.choosing.proof import answered
from gpujob_worker.serving.choosing.timing import Timing
from gpujob_worker.serving.examples import Examples
from gpujob_worker.serving.plan import REFERENCE
from gpujob_worker.serving.rows import count, first_rows, padded, rows_of
from gpujob_worker.serving.signature import Signature, signature

NOISE_ROWS = 32
REFERENCE_BATCH_MAX = 32


def run_candidate_if_asked(
    model: nn.Module, examples: Examples, metric: Metric | None = None
) -> None:
    """Measures one plan and ends the process, if this process was started for it. Returns at once
    in every other process.
    """
    assignment = Assignment.from_environment(os.environ)
    if assignment is None:
        return
    try:
        result = measure_plan(assignment, model, examples, metric)
    except BaseException as error:
        text = f"{type(error).__name__}: {str(error)[:900]}"
        result = Result(problem=text, fatal=assignment.is_reference)
    result.write(Path(assignment.folder))
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the exit handlers of libraries, which may hang after a failed build.
    os._exit(0)


def measure_plan(
    assignment: Assignment, model: nn.Module, examples: Examples, metric: Metric | None = None
) -> Result:
    """Returns the result of the assignment's plan, or of requests to it. Raises what the build
    raises.
    """
    model.eval()
    device = device_of(model)
    _hold_memory(device)
    samples = calibration(examples)
    shape = signature(model, samples.inputs)
    if assignment.load is not None:
        return Result(seen=answered(assignment, assignment.load, model, shape, samples.inputs))
    identity = model_hash(model), tensors_hash(samples.inputs)
    if assignment.is_reference:
        return _reference(assignment, model, shape, samples.inputs, identity, metric)
    reference, written = _read_reference(Path(assignment.reference))
    problem = _other_script(identity, written)
    if problem is not None:
        return Result(*identity, problem=problem)
    inputs = samples.inputs
    start = time.monotonic()
    free = _free_bytes(device)
    folder = Path(assignment.folder)
    backend = build(assignment.plan, model, shape, inputs, assignment.sizes, folder)
    judged = Reference(inputs, reference, _noise(written), written.metric)
    sizes = assignment.sizes
    verdict = judge(backend.run, judged, sizes, assignment.settings.accuracy, metric)
    seconds = time.monotonic() - start
    if verdict.problem is not None:
        return Result(
            *identity,
            problem=verdict.problem,
            relative_error_percent=verdict.relative_error_percent,
            agreement_percent=verdict.agreement_percent,
        )
    eager = build(REFERENCE, model, shape, inputs, sizes, folder)
    timing = _time(assignment, backend, eager, inputs, device, seconds, free)
    name = FILES.get(assignment.plan.backend)
    return Result(
        *identity,
        relative_error_percent=verdict.relative_error_percent,
        agreement_percent=verdict.agreement_percent,
        timing=timing,
        artifact=name if name is not None and (folder / name).is_file() else None,
    )


def _reference(
    assignment: Assignment,
    model: nn.Module,
    shape: Signature,
    inputs: Tensors,
    identity: tuple[str, str],
    metric: Metric | None,
) -> Result:
    folder = Path(assignment.folder)
    device = device_of(model)
    free, start = _free_bytes(device), time.monotonic()
    eager = build(REFERENCE, model, shape, inputs, assignment.sizes, folder)
    batch = min(REFERENCE_BATCH_MAX, assignment.sizes[-1])
    outputs = answer_all(eager, inputs, batch)
    few = first_rows(inputs, min(NOISE_ROWS, count(inputs)))
    noise = noise_of(answer_all(eager, few, batch), answer_all(eager, few, 1))
    problem = neighbour_problem(noise, assignment.settings.accuracy)
    if problem is not None:
        return Result(*identity, problem=problem, fatal=True)
    value: float | None = None
    if metric is not None:
        try:
            value = float(metric(outputs))
        except Exception as error:
            text = f"metric: raised {type(error).__name__} on the model as written: {error}"
            return Result(*identity, problem=text, fatal=True)
    seconds = time.monotonic() - start
    save_file({name: out.contiguous() for name, out in outputs.items()}, folder / REFERENCE_FILE)
    figures = tuple(
        NoiseFigures(name, n.relative_percent, n.row_percent, n.largest_percent, n.absolute)
        for name, n in noise.items()
    )
    return Result(
        *identity,
        relative_error_percent=max((one.relative_percent for one in figures), default=0.0),
        agreement_percent=100.0,
        timing=_time(assignment, eager, eager, inputs, device, seconds, free),
        answers=tensors_hash(outputs),
        noise=figures,
        metric=value,
    )


def answer_all(backend: Backend, inputs: Tensors, batch: int) -> dict[str, torch.Tensor]:
    """Returns the answers to all samples, in batches of one size. The last one is padded."""
    total = count(inputs)
    parts: list[Tensors] = []
    for first in range(0, total, batch):
        rows = range(first, min(first + batch, total))
        outputs = backend.run(padded(rows_of(inputs, rows), batch))
        parts.append({name: out[: len(rows)] for name, out in outputs.items()})
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _time(
    assignment: Assignment,
    backend: Backend,
    eager: Backend,
    inputs: Tensors,
    device: torch.device,
    start_seconds: float,
    free_before: int,
) -> Timing:
    work = assignment.work
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    effort = Effort(work.warm_ups, work.batches_max, work.size_seconds, work.clock_seconds)
    found = clock(
        backend.run,
        eager.run,
        lambda size: first_rows(inputs, size),
        assignment.sizes,
        DeviceTimer(device),
        effort,
    )
    return Timing(found, _memory_bytes(device, free_before), start_seconds)


def _read_reference(folder: Path) -> tuple[Tensors, Result]:
    written = Result.read(folder)
    outputs = load_file(folder / REFERENCE_FILE)
    if written is None or tensors_hash(outputs) != written.answers:
        raise RuntimeError("the stored answers of the model as written are not those that it gave")
    return outputs, written


def _noise(written: Result) -> Mapping[str, Noise]:
    return {
        one.output: Noise(one.relative_percent, one.row_percent, one.largest_percent, one.absolute)
        for one in written.noise
    }


def _other_script(identity: tuple[str, str], written: Result) -> str | None:
    model, examples = identity
    if model != written.model:
        return (
            "the script made another model than for the reference: load its weights from a file,"
            " or set a seed before it is made"
        )
    if examples != written.examples:
        return "the script passed other examples than for the reference: read them from a file"
    return None


def _hold_memory(device: torch.device) -> None:
    """Keeps a candidate on the GPU within the reservation of its pod."""
    text = os.environ.get(ENV_MEMORY_LIMIT_BYTES, "")
    if device.type != "cuda" or not text.isdigit():
        return
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, int(text) / total), device)


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def _memory_bytes(device: torch.device, free_before: int) -> int:
    """Returns peak memory. Engines allocate outside torch, so the card's free memory counts too."""
    if device.type != "cuda":
        return CpuMemory().current_bytes()
    taken = free_before - torch.cuda.mem_get_info(device)[0]
    return max(torch.cuda.max_memory_reserved(device), taken, 0)
