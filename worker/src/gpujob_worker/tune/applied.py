"""The settings that are applied in a run; `registry` reads, applies and rolls them back."""

from dataclasses import dataclass, field, replace

from gpujob_worker.inject.wrapped_module import RootPlan


@dataclass(slots=True)
class Applied:
    """The applied settings: everything that a roll-back has to undo."""

    plan: RootPlan = field(default_factory=RootPlan)
    activation_checkpointing: bool = False
    fused: bool = False
    # Of several optimizers it is not for all: the next run must not begin with it.
    fused_here_only: bool = False
    # In how many optimizers the kernel was compared: it is for no others in the next run.
    optimizers_judged: int = 1
    optimizer_offload: bool = False
    loader_workers: int | None = None
    # For the next process: this one's allocator is made.
    expandable_segments: bool = False

    def with_process_of(self, other: "Applied") -> "Applied":
        """The settings of this module, and those of the optimizers and the process of `other`."""
        return replace(
            other, plan=self.plan, activation_checkpointing=self.activation_checkpointing
        )

    def without_settings(self) -> "Applied":
        """The process-wide settings only."""
        return Applied(
            loader_workers=self.loader_workers, expandable_segments=self.expandable_segments
        )

    def memory_only(self) -> "Applied":
        """Without settings for speed."""
        return Applied(
            plan=self.plan.memory_only(),
            activation_checkpointing=self.activation_checkpointing,
            optimizer_offload=self.optimizer_offload,
            expandable_segments=self.expandable_segments,
            loader_workers=self.loader_workers,
        )
