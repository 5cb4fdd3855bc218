"""Decides the settings with which an attempt starts: the user's spec and what was
measured before.
"""

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.settings import OptimizeMode, Settings
from gpujob_operator.decide.measurement.permitted import permitted
from gpujob_operator.decide.measurement.reservation import profile_entry


def settings_for(job: GPUJob, profile: GPUProfile | None) -> Settings:
    """The settings of the job's next pod.

    The choice of an earlier attempt comes first, so that a resumed run continues unchanged. Then
    comes the workload's profile on this GPU model, so that a second run does not tune again. What
    the spec does not allow any more is not continued with.
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
