"""What is in force in a run, and how it is put in force and taken back."""

from dataclasses import dataclass, field, replace

import torch

from gpujob_api.settings import Precision, TunedSettings
from gpujob_worker.inject.activation_checkpointing import ActivationCheckpointing
from gpujob_worker.inject.fused_optimizer import use_fused
from gpujob_worker.inject.wrapped_module import Root, RootPlan


@dataclass(slots=True)
class Applied:
    """What is in force; everything that a roll-back has to take back."""

    plan: RootPlan = field(default_factory=RootPlan)
    activation_checkpointing: bool = False
    fused: bool = False
    optimizer_offload: bool = False
    loader_workers: int | None = None

    def memory_only(self) -> "Applied":
        """Without what is for speed."""
        return Applied(
            plan=self.plan.memory_only(),
            activation_checkpointing=self.activation_checkpointing,
            optimizer_offload=self.optimizer_offload,
            loader_workers=self.loader_workers,
        )

    @property
    def precision(self) -> Precision:
        if self.plan.autocast is torch.bfloat16:
            return Precision.BFLOAT16
        if self.plan.autocast is torch.float16:
            return Precision.FLOAT16
        return Precision.TF32 if self.plan.flags.tf32 else Precision.FLOAT32

    def tuned(self) -> TunedSettings:
        return TunedSettings(
            precision=self.precision,
            batch_per_step=self.plan.rows_per_step,
            activation_checkpointing=self.activation_checkpointing,
            compile=self.plan.compiles,
            regional_compile=self.plan.compiled_blocks is not None,
            cuda_graphs=self.plan.cuda_graphs,
            data_loader_workers=self.loader_workers,
            fused_optimizer=self.fused,
            channels_last=self.plan.channels_last is not None,
            convolution_autotuning=self.plan.flags.convolution_autotuning,
            attention=self.plan.attention,
            activation_offload=self.plan.activations_on_host,
            optimizer_offload=self.optimizer_offload,
        )


def keep_only(applied: Applied, agreed: TunedSettings) -> None:
    """Takes back what `agreed` has not; nothing is added."""
    plan = applied.plan
    if applied.precision is not agreed.precision:
        flags = replace(plan.flags, tf32=False)
        plan = replace(plan, autocast=None, loss_scale=None, flags=flags)
    if not agreed.compile:
        plan = replace(plan, compiled=None, compiled_blocks=None, compiled_signature=None)
    plan = replace(
        plan,
        attention=plan.attention if plan.attention is agreed.attention else None,
        channels_last=plan.channels_last if agreed.channels_last else None,
        cuda_graphs=plan.cuda_graphs and agreed.cuda_graphs,
        flags=replace(
            plan.flags,
            convolution_autotuning=plan.flags.convolution_autotuning
            and agreed.convolution_autotuning,
        ),
    )
    applied.plan = plan
    applied.fused = applied.fused and agreed.fused_optimizer


def put_in_force(root: Root, optimizer: torch.optim.Optimizer | None, applied: Applied) -> None:
    """Makes the next step run with `applied`; `Applied()` is the script's own way."""
    root.plan = applied.plan
    blocks = ActivationCheckpointing(root)
    (blocks.enable if applied.activation_checkpointing else blocks.disable)()
    if optimizer is not None and applied.fused:
        use_fused(optimizer, True)
