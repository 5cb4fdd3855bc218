"""Specs that the API server accepts and of which no replica would do what they demand."""

from gpujob_api.gpuservice import LEFT_AS_IT_IS, GPUServiceSpec
from gpujob_api.serving import BackendName, BatchingPolicy, Quantization


def refusal(spec: GPUServiceSpec) -> str:
    """Returns why no replica is created, with the field, or "".

    Rules of the CRD can read none of these fields.
    """
    optimize = spec.optimize
    if optimize.backend is not BackendName.EXTERNAL:
        return ""
    if optimize.quantization is not Quantization.OFF:
        got = optimize.quantization.value
        return f"spec.optimize.quantization: must be Off with {LEFT_AS_IT_IS}; got {got}"
    policy = optimize.batching.policy
    if policy is not BatchingPolicy.AUTO:
        got = policy.value
        return f"spec.optimize.batching.policy: must be Auto with {LEFT_AS_IT_IS}; got {got}"
    return ""
