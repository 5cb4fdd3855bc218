"""Specs that the API server accepts and of which no replica would do what they demand."""

from collections.abc import Mapping
from typing import Any, cast

from gpujob_api.gpujob import SharingMode
from gpujob_api.gpuservice import LEFT_AS_IT_IS, GPUServiceSpec
from gpujob_api.serving import BackendName, BatchingPolicy, Quantization
from gpujob_operator.decide.services.grace import (
    DELAY_SECONDS,
    END_SECONDS,
    needed_grace_seconds,
)


def refusal(spec: GPUServiceSpec) -> str:
    """Returns why no replica is created, with the field, or "".

    Rules of the CRD cannot read these fields, or their messages would lack the numbers.
    """
    if spec.optimize.backend is BackendName.EXTERNAL:
        return _for_external(spec)
    mode = spec.sharing.mode
    if spec.replicas.park_after_seconds is not None and mode is not SharingMode.AUTO:
        return (
            "spec.sharing.mode: must be Auto with spec.replicas.parkAfterSeconds, because only "
            f"memory that is reserved by measurement can be given back; got {mode.value}"
        )
    pod = cast("Mapping[str, Any]", spec.template.get("spec") or {})
    given, needed = pod.get("terminationGracePeriodSeconds"), needed_grace_seconds(spec)
    if given is None or given >= needed:
        return ""
    return (
        f"spec.template.spec.terminationGracePeriodSeconds: must be at least {needed}, or absent: "
        f"{DELAY_SECONDS:g} s until no requests arrive, {spec.objective.latency_milliseconds:g} ms "
        f"(spec.objective) for the queue, {END_SECONDS:g} s for the end; got {given}"
    )


def _for_external(spec: GPUServiceSpec) -> str:
    optimize = spec.optimize
    if optimize.quantization is not Quantization.OFF:
        got = optimize.quantization.value
        return f"spec.optimize.quantization: must be Off with {LEFT_AS_IT_IS}; got {got}"
    policy = optimize.batching.policy
    if policy is not BatchingPolicy.AUTO:
        got = policy.value
        return f"spec.optimize.batching.policy: must be Auto with {LEFT_AS_IT_IS}; got {got}"
    return ""
