"""Profiles some steps on request, with torch's profiler for TensorBoard or in a window for nsys."""

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

# The profile follows warm-up, baseline, tuning, and the first steps with the chosen settings.
FIRST_STEP = 10


class ProfileWith(Enum):
    TORCH = "torch"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """The number of steps, the folder, and the tool."""

    steps: int
    folder: Path
    tool: ProfileWith = ProfileWith.TORCH


class StepProfiler:
    """Starts and stops between steps. An error of the profiler is reported and has no
    other effect.
    """

    def __init__(self, request: ProfileRequest) -> None:
        self._request = request
        self._running: Any = None

    def step_done(self, step: int) -> str | None:
        """Call it after step number `step`. Returns a text to print, or None."""
        try:
            if step == FIRST_STEP:
                self._running = self._start()
            elif self._running is not None and step == FIRST_STEP + self._request.steps:
                return self.close()
        except Exception as error:
            self._running = None
            return f"failed: {error}"
        return None

    def close(self) -> str | None:
        """Ends a running profile, even if the run ends before its last step."""
        running, self._running = self._running, None
        if running is None:
            return None
        if self._request.tool is ProfileWith.CUDA:
            running.stop()
            return f"{self._request.steps} steps were marked for the profiler around this process"
        running.__exit__(None, None, None)
        return f"written to {self._request.folder}"

    def _start(self) -> Any:
        import torch

        if self._request.tool is ProfileWith.CUDA:
            cuda: Any = torch.cuda.profiler
            cuda.start()
            return cuda
        with contextlib.suppress(FileExistsError):
            self._request.folder.mkdir(parents=True)
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
        handler = profiler.tensorboard_trace_handler(str(self._request.folder))
        running = profiler.profile(
            activities=activities, on_trace_ready=handler, record_shapes=True
        )
        running.__enter__()
        return running


def nsys_command(request: ProfileRequest, options: Sequence[str], command: Sequence[str]) -> str:
    """Returns the command that profiles the same steps with Nsight Systems."""
    nsys = ["nsys", "profile", "--trace=cuda,nvtx,osrt,cudnn,cublas"]
    nsys += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    nsys += ["--output", str(request.folder / "steps")]
    own = ["gpujob-run", "--profile-steps", str(request.steps), "--profile-with", "cuda"]
    return shlex.join([*nsys, *own, *options, "--", *command])
