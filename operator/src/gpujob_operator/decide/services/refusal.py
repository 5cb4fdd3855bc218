"""Specs that the API server accepts and of which no replica would do what they demand."""

from collections.abc import Mapping
from typing import Any, cast

from gpujob_api.gpujob import SharingMode
from gpujob_api.gpuservice import LEFT_AS_IT_IS, GPUServiceSpec
from gpujob_api.serving import BackendName, BatchingPolicy, Quantization
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.services.grace import (
    DELAY_SECONDS,
    END_SECONDS,
    GRACE_SECONDS_DEFAULT,
    needed_grace_seconds,
)

_GRACE = "spec.template.spec.terminationGracePeriodSeconds"


def refusal(spec: GPUServiceSpec, configuration: Configuration) -> str:
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
    parts = (
        f"{DELAY_SECONDS:g} s until no requests arrive, {spec.objective.latency_milliseconds:g} ms "
        f"(spec.objective) for the queue, {END_SECONDS:g} s for the end"
    )
    most, default = (
        configuration.termination_grace_seconds_max,
        configuration.termination_grace_seconds,
    )
    if needed > most:
        return (
            f"spec.objective.latencyMilliseconds: needs a grace of {needed} s: {parts}; the "
            f"operator's terminationGraceSecondsMax is {most}: lower the one or have the other "
            "raised"
        )
    if given is not None and given < needed:
        return f"{_GRACE}: must be at least {needed}, or absent: {parts}; got {given}"
    if given is None and default < needed <= GRACE_SECONDS_DEFAULT:
        return (
            f"{_GRACE}: must be at least {needed}: {parts}; without it, the operator's "
            f"terminationGraceSeconds ({default}) counts"
        )
    return ""


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
