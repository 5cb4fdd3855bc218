"""Loads the chosen backend in a replica, which never measures.

From the cache folder if the file there was made for this very model, torch and device; else built
anew. Its first answers are compared with those of the model as written. Whatever fails, the model
as written serves, and the reason is printed.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gpujob_api.serving import ENV_SERVING_CACHE, BackendName, Quantization, ServingSettings
from gpujob_api.settings import Precision
from gpujob_worker.run.standard_error import say
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.backends.answering import device_of
from gpujob_worker.serving.backends.build import FILES, build, load_file
from gpujob_worker.serving.choosing.artifacts import Artifacts
from gpujob_worker.serving.choosing.candidate_process import answer_all
from gpujob_worker.serving.choosing.candidates import sizes
from gpujob_worker.serving.choosing.guard import Reference, judge, noise_of
from gpujob_worker.serving.choosing.identity import artifact_key, model_hash, surroundings
from gpujob_worker.serving.eager import EagerBackend
from gpujob_worker.serving.plan import REFERENCE, Plan
from gpujob_worker.serving.rows import count, first_rows
from gpujob_worker.serving.signature import Signature

# Enough to notice a backend that answers wrongly, and few enough for a quick start.
SAMPLES_CHECKED = 32


def planned(settings: ServingSettings) -> Plan:
    """Returns the plan in the settings. Auto is the model as written: nothing was measured."""
    if settings.backend in (BackendName.AUTO, BackendName.EXTERNAL):
        return REFERENCE
    precision = settings.precision
    quantization = settings.quantization
    return Plan(
        settings.backend,
        Precision.FLOAT32 if precision is Precision.AUTO else precision,
        Quantization.OFF if quantization is Quantization.AUTO else quantization,
    )


def load(
    model: nn.Module,
    signature: Signature,
    examples: Tensors,
    settings: ServingSettings,
    *,
    environment: Mapping[str, str] | None = None,
    log: Callable[[str], None] | None = None,
) -> Backend:
    """Returns a backend that is ready at all of its sizes. Raises nothing of a build's."""
    environment = os.environ if environment is None else environment
    log = log or (lambda text: say(f"gpujob: {text}"))
    plan = planned(settings)
    eager = EagerBackend(model, signature)
    if plan == REFERENCE:
        return eager
    batch_sizes = sizes(settings, cuda=device_of(model).type == "cuda")
    for way in _ways(plan, model, signature, examples, batch_sizes, environment, log):
        try:
            backend = way.make()
            problem = _problem(backend, eager, examples, batch_sizes, settings)
        except Exception as error:
            lines = str(error).strip().splitlines() or ["no message"]
            problem = f"{type(error).__name__}: {lines[0][:300]}"
        else:
            if problem is None:
                way.keep()
                return backend
        log(f"{plan} is not used: {problem}")
    log("the model is served as written")
    return eager


@dataclass(frozen=True, slots=True)
class _Way:
    """How to get the backend. `keep` is called once its answers are known to be right."""

    make: Callable[[], Backend]
    keep: Callable[[], None] = lambda: None


def _ways(
    plan: Plan,
    model: nn.Module,
    signature: Signature,
    examples: Tensors,
    batch_sizes: tuple[int, ...],
    environment: Mapping[str, str],
    log: Callable[[str], None],
) -> Iterator[_Way]:
    """Yields ways to get the backend: from the cache folder if it has one, and by a build."""
    cache = environment.get(ENV_SERVING_CACHE, "")
    name = FILES.get(plan.backend)
    folder = Path(tempfile.mkdtemp(prefix="gpujob-backend-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    fresh = folder / "built"
    fresh.mkdir()
    key = ""
    if cache and name is not None:
        around = surroundings(device_of(model))
        key = artifact_key(model_hash(model), plan, batch_sizes, around)
        path, reason = Artifacts(Path(cache)).take(key, name, folder)
        if path is not None:
            yield _Way(lambda: load_file(plan, path, signature, model, batch_sizes))
        else:
            log(f"{plan} is built: {reason}")
    elif name is not None:
        log(f"{plan} is built, for minutes if large: artifactsClaimName would keep it")

    def keep() -> None:
        if not key or name is None or not (fresh / name).is_file():
            return
        try:
            Artifacts(Path(cache)).put(key, fresh / name)
        except OSError as error:
            log(f"the built {plan} is not kept in {cache}: {error}")

    yield _Way(lambda: build(plan, model, signature, examples, batch_sizes, fresh), keep)


def _problem(
    backend: Backend,
    eager: Backend,
    examples: Tensors,
    batch_sizes: tuple[int, ...],
    settings: ServingSettings,
) -> str | None:
    few = first_rows(examples, min(SAMPLES_CHECKED, count(examples)))
    with torch.inference_mode():
        written = answer_all(eager, few, min(count(few), batch_sizes[-1]))
        noise = noise_of(written, answer_all(eager, few, 1))
    verdict = judge(backend.run, Reference(few, written, noise), batch_sizes, settings.accuracy)
    return verdict.problem
