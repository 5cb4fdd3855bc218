"""The settings of a service's replicas, and the revision that names them.

Replicas of one revision are interchangeable. A change of anything that shapes a replica is another
revision, which replaces the replicas one by one.
"""

import hashlib
import json
from collections.abc import Sequence

from gpujob_api.codec import encode
from gpujob_api.gpuservice import GPUService, GPUServiceSpec
from gpujob_api.serving import BackendName, Quantization, ServingSettings
from gpujob_api.settings import Precision

_CHARACTERS = 6


def settings_of(service: GPUService) -> ServingSettings:
    """Returns the settings of new replicas: the measured choice if there is one for this spec."""
    spec, optimize = service.spec, service.spec.optimize
    backend, precision = optimize.backend, optimize.precision
    quantization = optimize.quantization
    choice = service.status.choice
    if optimize.measures:
        if choice is None or service.status.choice_key != choice_key(service):
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
    """Returns the revision of replicas with these settings."""
    spec = service.spec
    # The operator creates and deletes jobs, and edits none.
    return _digest(spec, [settings.to_text(), spec.queue, spec.priority])


def choice_key(service: GPUService) -> str:
    """Returns what a choice of backend depends on. The load, the number of replicas, the queue and
    the priority do not count.
    """
    optimize = service.spec.optimize
    objective = json.dumps(encode(service.spec.objective), sort_keys=True)
    return _digest(service.spec, [objective + json.dumps(encode(optimize), sort_keys=True)])


def _digest(spec: GPUServiceSpec, more: Sequence[str | int]) -> str:
    job = encode(spec.job_spec())
    for name in ("queue", "priority", "suspend"):
        job.pop(name, None)
    text = json.dumps([job, *more, spec.port, spec.artifacts_claim_name], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_CHARACTERS]
