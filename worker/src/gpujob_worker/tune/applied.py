"""What is in force in a run; `registry` reads it, puts it in force and takes it back."""

from dataclasses import dataclass, field

from gpujob_worker.inject.wrapped_module import RootPlan


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
