"""`gpujob_worker.serve`: a server from a model and examples of its inputs.

    model = load_model().eval()
    gpujob_worker.serve(model, "calibration.safetensors")

The process ends with 143 if a stop ended it and each accepted request was answered, because
nothing is lost then, and with 144 if time was too short. Both are interruptions to the operator.
An error of the model while it is loaded is raised.
"""

import importlib.util
import os
from typing import NoReturn

import torch

from gpujob_api.codec import FieldError
from gpujob_api.serving import ENV_SERVING, ServingSettings
from gpujob_worker.run.current_session import known_session
from gpujob_worker.run.session import Session
from gpujob_worker.run.standard_error import say
from gpujob_worker.serving.choosing.guard import Metric
from gpujob_worker.serving.examples import Examples, read_examples
from gpujob_worker.serving.tensors import short

NAME_CHARACTERS_MAX = 128
NAME_SIGNS = "-_."
PACKAGES = ("aiohttp", "numpy", "safetensors")


def serve(
    model: torch.nn.Module,
    examples: Examples,
    *,
    name: str = "model",
    metric: Metric | None = None,
) -> NoReturn:
    """Serves the model by HTTP until the process is stopped, and never returns.

    `examples` show the names, types and shapes of the inputs: a dict of tensors, a tensor for the
    input `input`, or the path of a .safetensors file. The first dimension counts samples. `name`
    is the model's name in requests. `metric` judges outputs when backends are measured.

    Raises `SystemExit` at the end, `InputError` for examples that the model does not take, and what
    the model raises while it is loaded. If the settings ask for a measurement of backends, the
    process measures, reports and ends with 0 instead.
    """
    _require_packages()
    # Imported here, because these need packages that training does not need.
    from gpujob_worker.serving.choosing.candidate_process import run_candidate_if_asked
    from gpujob_worker.serving.serving_process import ServingProcess

    run_candidate_if_asked(model, examples, metric)
    settings = read_settings()
    _check_name(name)

    session = known_session()
    process = ServingProcess(session, settings, name)
    try:
        process.begin()
        if settings.measure:
            process.measure(model, read_examples(examples))
            end: SystemExit = SystemExit(0)
        else:
            end = process.run(model, read_examples(examples))
    except BaseException as error:
        _finish(session, error)
        raise
    _finish(session, end)
    raise end


def read_settings() -> ServingSettings:
    """Returns the settings in GPUJOB_SERVING. Ends the process with 2 if they are invalid."""
    try:
        return ServingSettings.from_text(os.environ.get(ENV_SERVING, "").strip() or "{}")
    except (FieldError, ValueError) as error:
        say(f"gpujob: {error}")
        raise SystemExit(2) from None


def _check_name(name: str) -> None:
    plain = name.isascii() and all(one.isalnum() or one in NAME_SIGNS for one in name)
    if not plain or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        text = f"must have 1 to {NAME_CHARACTERS_MAX} letters, digits or {NAME_SIGNS}"
        raise ValueError(f"name: {text}; got {short(name)}")


def _require_packages() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        names = " ".join(missing)
        say(f"gpujob: serving needs packages that are not installed: pip install {names}")
        raise SystemExit(2)


def _finish(session: Session, error: BaseException) -> None:
    """Makes the last report, unless the end of the process makes it."""
    if not session.is_hooked:
        session.finish(error)
