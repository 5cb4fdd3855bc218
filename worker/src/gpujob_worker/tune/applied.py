"""The settings that are applied in a run; `registry` reads, applies and rolls them back."""

from dataclasses import dataclass, field, replace

from gpujob_worker.inject.wrapped_module import RootPlan


@dataclass(slots=True)
class Applied:
    """The applied settings: everything that a roll-back has to undo."""

    plan: RootPlan = field(default_factory=RootPlan)
    activation_checkpointing: bool = False
    fused: bool = False
    # The kernel was not chosen for all of several optimizers, so the next run must not begin with
    # it.
    fused_here_only: bool = False
    # Number of optimizers in which the kernel was compared. The next run uses it for no others.
    optimizers_judged: int = 1
    optimizer_offload: bool = False
    loader_workers: int | None = None
    # Takes effect in the next process, because this process's allocator already exists.
    expandable_segments: bool = False

    def with_process_of(self, other: "Applied") -> "Applied":
        """Returns this module's settings with the optimizer and process settings of `other`."""
        return replace(
            other, plan=self.plan, activation_checkpointing=self.activation_checkpointing
        )

    def without_settings(self) -> "Applied":
        """Returns only the process-wide settings."""
        return Applied(
            loader_workers=self.loader_workers, expandable_segments=self.expandable_segments
        )

    def memory_only(self) -> "Applied":
        """Returns the settings without those for speed."""
        return Applied(
            plan=self.plan.memory_only(),
            activation_checkpointing=self.activation_checkpointing,
            optimizer_offload=self.optimizer_offload,
            expandable_segments=self.expandable_segments,
            loader_workers=self.loader_workers,
        )
