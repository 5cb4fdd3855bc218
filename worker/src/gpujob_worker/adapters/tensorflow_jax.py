"""Sets environment variables of TensorFlow and JAX just before they are imported.

Their steps are not visible to the worker. The agent measures their GPUs from outside.
"""

import os
from collections.abc import Mapping

from gpujob_api.settings import Precision, Settings, Toggle
from gpujob_worker.launch.import_hooks import when_imported
from gpujob_worker.run.decision_log import DecisionLog

_OUTSIDE = "steps are not measured here, the GPU is measured from outside"
_JAX_PRECISION = {Precision.TF32: "tensorfloat32", Precision.BFLOAT16: "bfloat16"}


def tensorflow_variables(settings: Settings) -> dict[str, str]:
    """Makes memory grow on demand, so that the GPU can be shared, and enables XLA if requested."""
    variables = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if settings.compile is Toggle.ON:
        variables["TF_XLA_FLAGS"] = "--tf_xla_auto_jit=2"
    if settings.precision is Precision.FLOAT32:
        variables["NVIDIA_TF32_OVERRIDE"] = "0"
    return variables


def jax_variables(settings: Settings) -> dict[str, str]:
    """Stops JAX from preallocating three quarters of the GPU, and sets the precision of matrix
    products.
    """
    variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if settings.precision in _JAX_PRECISION:
        variables["JAX_DEFAULT_MATMUL_PRECISION"] = _JAX_PRECISION[settings.precision]
    return variables


def watch(settings: Settings, log: DecisionLog) -> None:
    known = {"tensorflow": tensorflow_variables(settings), "jax": jax_variables(settings)}
    for name, variables in known.items():

        def before(name: str = name, variables: Mapping[str, str] = variables) -> None:
            set_variables(name, variables, log)

        when_imported(name, before=before)


def set_variables(name: str, variables: Mapping[str, str], log: DecisionLog) -> None:
    """Sets variables that the user has not set."""
    new = {key: value for key, value in variables.items() if key not in os.environ}
    os.environ.update(new)
    text = " ".join(f"{key}={value}" for key, value in new.items()) or "nothing, all is set already"
    log.applied(f"{name} environment", f"{text}; {_OUTSIDE}")
