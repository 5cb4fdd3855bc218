"""The settings of a service's replicas, and the revision that names them.

Replicas of one revision are interchangeable. A change of anything that shapes a replica is another
revision, which replaces the replicas one by one.
"""

import hashlib
import json
from collections.abc import Sequence

from gpujob_api.codec import encode
from gpujob_api.gpuservice import GPUService
from gpujob_api.serving import Accuracy, BackendName, Choice, Quantization, ServingSettings
from gpujob_api.settings import Precision

_CHARACTERS = 6


def settings_of(service: GPUService) -> ServingSettings:
    """Returns the settings of new replicas: the measured choice if there is one for this model."""
    spec, optimize = service.spec, service.spec.optimize
    backend, precision = optimize.backend, optimize.precision
    quantization = optimize.quantization
    if optimize.measures:
        choice = choice_in_force(service)
        if choice is None:
            backend, precision = BackendName.EAGER, as_written(precision)
            quantization = Quantization.OFF
        else:
            backend, precision = choice.backend, choice.precision
            quantization = choice.quantization
    return ServingSettings(
        objective=spec.objective,
        batching=optimize.batching,
        accuracy=optimize.accuracy,
        backend=backend,
        precision=precision,
        quantization=quantization,
        port=spec.port,
    )


def choice_in_force(service: GPUService) -> Choice | None:
    """Returns the choice that the replicas have, or None for the model as written.

    After an edit of the objective or of `optimize`, the earlier choice stays until the new one is
    measured, if the edit permits it. Another template may be another model.
    """
    status, optimize = service.status, service.spec.optimize
    choice, key = status.choice, choice_key(service)
    if choice is None or status.choice_key == key:
        return choice
    permitted = (
        optimize.precision in (Precision.AUTO, choice.precision)
        and choice.quantization in (Quantization.OFF, optimize.quantization)
        and _keeps(choice, optimize.accuracy)
    )
    return choice if permitted and status.choice_key[:_CHARACTERS] == key[:_CHARACTERS] else None


def _keeps(choice: Choice, accuracy: Accuracy) -> bool:
    """Returns whether the chosen candidate was within these bounds, as far as it was measured."""
    return all(
        (one.relative_error_percent or 0.0) <= accuracy.max_relative_error_percent
        and (
            one.agreement_percent is None or one.agreement_percent >= accuracy.min_agreement_percent
        )
        for one in choice.candidates[:1]
    )


def as_written(precision: Precision) -> Precision:
    return Precision.FLOAT32 if precision is Precision.AUTO else precision


def measuring_settings(service: GPUService) -> ServingSettings:
    """Returns the settings of the job that measures backends."""
    spec, optimize = service.spec, service.spec.optimize
    traffic = service.status.traffic
    return ServingSettings(
        objective=spec.objective,
        batching=optimize.batching,
        accuracy=optimize.accuracy,
        precision=optimize.precision,
        quantization=optimize.quantization,
        port=spec.port,
        expected_rate=traffic.requests_per_second or None if traffic is not None else None,
        measure=True,
    )


def revision_of(service: GPUService, settings: ServingSettings) -> str:
    """Returns the revision of replicas with these settings.

    Queue and priority are a part of it, because the operator creates and deletes jobs, and edits
    none.
    """
    spec = service.spec
    job = encode(spec.job_spec())
    return _digest([job, settings.to_text(), spec.port, spec.artifacts_claim_name])


def choice_key(service: GPUService) -> str:
    """Returns what a choice of backend depends on: the model, then what is asked of it.

    The load, the number of replicas, memory, spot, queue and priority do not count.
    """
    spec = service.spec
    model = _digest([dict(spec.template), list(spec.gpu.models)])
    return model + _digest([encode(spec.objective), encode(spec.optimize)])


def _digest(parts: Sequence[object]) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_CHARACTERS]
