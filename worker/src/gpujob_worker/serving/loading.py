"""Makes the backend that the settings name, within the memory limit of the process."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpujob_api.serving import ServingSettings
from gpujob_api.settings import Precision
from gpujob_worker.run.session import Session
from gpujob_worker.run.session_device import hold_to_limit, use_device
from gpujob_worker.run.standard_error import say
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.choosing.load import load, planned
from gpujob_worker.serving.eager import EagerBackend
from gpujob_worker.serving.messages import check_types
from gpujob_worker.serving.plan import REFERENCE
from gpujob_worker.serving.signature import Signature, signature


@dataclass(frozen=True, slots=True)
class Loaded:
    """A backend that is ready, and what it executes."""

    backend: Backend
    signature: Signature
    precision: Precision


def evaluated(model: torch.nn.Module, session: Session) -> torch.nn.Module:
    """Returns the model in evaluation mode, on its device, which is measured from now on."""
    if any(module.training for module in model.modules()):
        session.log.note("model", "put in evaluation mode, in which answers do not change")
    model.eval()
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    if device.type == "cpu" and torch.cuda.is_available():
        session.log.note("model", "on the CPU, although a GPU is there; model.cuda() moves it")
    if not session.state.torch_version:
        session.state.runs_on("cpu", torch.__version__)
    use_device(session, device)
    return model


def load_backend(
    model: torch.nn.Module, examples: Tensors, settings: ServingSettings, session: Session
) -> Loaded:
    """Returns the backend, or the model as written if that cannot be built; the log has the reason.
    Raises `InputError` for examples that the model or the protocol does not take.
    """
    found = signature(evaluated(model, session), examples)
    check_types(found)
    backend = load(model, found, examples, settings, log=_noted(session))
    # More libraries may have been loaded, and count against the limit.
    hold_to_limit(session)
    plan = REFERENCE if isinstance(backend, EagerBackend) else planned(settings)
    return Loaded(backend, found, plan.precision)


def _noted(session: Session) -> Callable[[str], None]:
    """Returns a function that prints a line, and keeps all lines for the reports."""
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        session.log.note("backend", "; ".join(lines), aloud=False)
        session.log.said("backend")
        say(f"gpujob: {line}")

    return note
