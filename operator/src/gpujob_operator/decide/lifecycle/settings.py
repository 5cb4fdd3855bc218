"""Decides the settings with which an attempt starts, from the user's spec and earlier
measurements.
"""

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.optimize import Optimize
from gpujob_api.settings import OptimizeMode, Precision, Settings, Toggle, TunedSettings
from gpujob_operator.decide.measurement.reservation import profile_entry


def settings_for(job: GPUJob, profile: GPUProfile | None) -> Settings:
    """Returns the settings of the job's next pod.

    The choice of an earlier attempt comes first, so that a resumed run continues unchanged. The
    workload's profile on this GPU model comes next, so that a second run does not tune again.
    Settings that the spec no longer allows are dropped.
    """
    optimize = job.spec.optimize
    per_step = optimize.batch_size.per_step
    tuned = permitted(job.status.tuned, optimize)
    if tuned is None and optimize.mode is OptimizeMode.AUTO:
        model = job.status.placement.gpu_model if job.status.placement else ""
        entry = profile_entry(profile, model)
        tuned = permitted(entry.tuned, optimize) if entry is not None else None
    return Settings(
        mode=optimize.mode,
        task=optimize.task,
        precision=optimize.precision,
        batch_total=optimize.batch_size.total,
        batch_per_step=per_step.samples if per_step is not None else None,
        activation_checkpointing=optimize.activation_checkpointing,
        compile=optimize.compile,
        data_loading=optimize.data_loading,
        tuned=tuned,
        checkpoint_interval_seconds=job.spec.checkpoint.interval_seconds,
        checkpoint_keep=job.spec.checkpoint.keep,
        script_checkpoint=job.spec.checkpoint.path,
        resume_arguments=job.spec.checkpoint.resume_arguments,
        resume=job.spec.checkpoint.resume,
    )


def permitted(tuned: TunedSettings | None, optimize: Optimize) -> TunedSettings | None:
    """Returns the settings if the spec allows each of them, else None, because they were found
    together.

    A missing setting that the spec requests is no obstacle. The worker reports why it was not
    adopted.
    """
    if tuned is None or tuned == TunedSettings():
        return tuned
    is_allowed = optimize.mode is OptimizeMode.AUTO and not (
        _exceeds(tuned, optimize) or _is_forbidden(tuned, optimize)
    )
    return tuned if is_allowed else None


def _exceeds(tuned: TunedSettings, optimize: Optimize) -> bool:
    """Returns whether the settings use another precision or larger batches than requested."""
    if optimize.precision is not Precision.AUTO and tuned.precision not in (
        optimize.precision,
        Precision.FLOAT32,
    ):
        return True
    asked = optimize.batch_size.per_step
    if asked is None or asked.samples is None or tuned.batch_per_step is None:
        return False
    return tuned.batch_per_step > asked.samples


def _is_forbidden(tuned: TunedSettings, optimize: Optimize) -> bool:
    is_compiled = (
        tuned.compile or tuned.compile_beside or tuned.regional_compile or tuned.cuda_graphs
    )
    return (
        (optimize.activation_checkpointing is Toggle.OFF and tuned.activation_checkpointing)
        or (optimize.compile is Toggle.OFF and is_compiled)
        or (optimize.data_loading is Toggle.OFF and tuned.data_loader_workers is not None)
    )
