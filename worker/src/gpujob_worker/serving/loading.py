"""Makes the backend that the settings name, within the memory limit of the process."""

import torch

from gpujob_api.serving import ServingSettings
from gpujob_worker.run.session import Session
from gpujob_worker.run.session_device import hold_to_limit, use_device
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.eager import EagerBackend
from gpujob_worker.serving.messages import check_types
from gpujob_worker.serving.signature import Signature, signature


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
) -> tuple[Backend, Signature]:
    """Returns the backend, and the inputs and outputs of the model. Raises `InputError` for
    examples that the model or the protocol does not take.
    """
    found = signature(evaluated(model, session), examples)
    check_types(found)
    del settings
    hold_to_limit(session)
    return EagerBackend(model, found), found
