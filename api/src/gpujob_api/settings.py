"""The operator's settings for the worker: the JSON in GPUJOB_SETTINGS, and related names."""

import json
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Annotated

from gpujob_api.bounds import INT32_MAX, Range
from gpujob_api.codec import FieldError, decode, encode, parse_json

ENV_SETTINGS = "GPUJOB_SETTINGS"
ENV_NAME = "GPUJOB_NAME"
ENV_NAMESPACE = "GPUJOB_NAMESPACE"
ENV_UID = "GPUJOB_UID"
ENV_POD_UID = "GPUJOB_POD_UID"
ENV_ATTEMPT = "GPUJOB_ATTEMPT"
ENV_CHECKPOINT_DIRECTORY = "GPUJOB_CHECKPOINT_DIR"
ENV_REPORT_URL = "GPUJOB_REPORT_URL"
ENV_MEMORY_LIMIT_BYTES = "GPUJOB_MEMORY_LIMIT_BYTES"
ENV_TOKEN_FILE = "GPUJOB_TOKEN_FILE"  # noqa: S105 - the name of a variable, not a secret
ENV_TERMINATION_FILE = "GPUJOB_TERMINATION_FILE"
ENV_GRACE_SECONDS = "GPUJOB_GRACE_SECONDS"
# The folder in the worker's images that must be first on PYTHONPATH of hooked programs.
PYTHON_PATH_VARIABLE = "PYTHONPATH"
HOOK_FOLDER = "/opt/gpujob/hook"
TOKEN_AUDIENCE = "gpujob"  # noqa: S105 - the audience of a token, not a secret

EXIT_DONE = 0
EXIT_INTERRUPTED_SAVED = 143
EXIT_INTERRUPTED_UNSAVED = 144


class OptimizeMode(Enum):
    AUTO = "Auto"
    RECOMMEND = "Recommend"
    OFF = "Off"


class Task(Enum):
    """What the script does. A step is a step of its optimizer, a call of its model, or a batch of
    requests that it answers.
    """

    AUTO = "Auto"
    TRAINING = "Training"
    INFERENCE = "Inference"
    SERVING = "Serving"


class Precision(Enum):
    AUTO = "Auto"
    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class AttentionKernel(Enum):
    """The kernel behind `scaled_dot_product_attention`, by torch's names."""

    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"
    MATH = "math"


class Toggle(Enum):
    AUTO = "Auto"
    ON = "On"
    OFF = "Off"


class ResumeMode(Enum):
    """Whether a run resumes from a checkpoint that cannot restore it exactly."""

    EXACT = "Exact"
    BEST_EFFORT = "BestEffort"


def words(text: str) -> dict[str, str]:
    """The text for a field of `TunedSettings`, which is its name by default. `{}` is its value."""
    return {"words": text}


@dataclass(frozen=True, slots=True)
class TunedSettings:
    """Settings that a measurement chose. All are concrete, none is Auto. None means unchanged."""

    precision: Precision = field(default=Precision.FLOAT32, metadata=words("{}"))
    batch_per_step: Annotated[int, Range(1, INT32_MAX)] | None = field(
        default=None, metadata=words("{} samples at once")
    )
    activation_checkpointing: bool = False
    compile: bool = False
    data_loader_workers: Annotated[int, Range(0, 1024)] | None = field(
        default=None, metadata=words("{} data loader workers")
    )
    fused_optimizer: bool = False
    # In how many optimizers the kernel was compared, in the order of their first steps.
    optimizers_judged: Annotated[int, Range(1, INT32_MAX)] = field(
        default=1, metadata=words("in up to {} optimizers")
    )
    channels_last: bool = False
    convolution_autotuning: bool = False
    attention: AttentionKernel | None = field(default=None, metadata=words("{} attention"))
    regional_compile: bool = field(default=False, metadata=words("compiled blocks"))
    dynamic_shapes: bool = field(default=False, metadata=words("compiled for any size"))
    cuda_graphs: bool = field(default=False, metadata=words("CUDA graphs"))
    activation_offload: bool = False
    optimizer_offload: bool = False
    expandable_segments: bool = False
    # If several modules train in one step, whether one other than the first is compiled.
    compile_beside: bool = field(default=False, metadata=words("compiled modules beside the first"))

    def __post_init__(self) -> None:
        if self.precision is Precision.AUTO:
            raise FieldError("precision", "tuned settings are concrete; got Auto")
        if self.batch_per_step is not None and self.batch_per_step < 1:
            raise FieldError("batchPerStep", f"must be at least 1; got {self.batch_per_step}")

    def in_words(self) -> dict[str, str]:
        """Returns the differences from a script as written, for people: a phrase by each such
        field's name.
        """
        found: dict[str, str] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value != entry.default:
                text: str = entry.metadata.get("words", entry.name.replace("_", " "))
                found[entry.name] = text.format(value.value if isinstance(value, Enum) else value)
        return found


@dataclass(frozen=True, slots=True)
class Settings:
    """GPUJOB_SETTINGS: the user's request, and the findings of an earlier run.

    If `tuned` is set, the worker starts with these settings and does not probe.
    """

    mode: OptimizeMode = OptimizeMode.AUTO
    task: Task = Task.AUTO
    precision: Precision = Precision.AUTO
    batch_total: int | None = None
    batch_per_step: int | None = None
    activation_checkpointing: Toggle = Toggle.AUTO
    compile: Toggle = Toggle.AUTO
    data_loading: Toggle = Toggle.AUTO
    tuned: TunedSettings | None = None
    checkpoint_interval_seconds: int | None = None
    checkpoint_keep: int = 3
    # Where the script keeps its own checkpoints, and the arguments that make it resume from one.
    script_checkpoint: str | None = None
    resume_arguments: tuple[str, ...] = ()
    resume: ResumeMode = ResumeMode.EXACT

    def to_text(self) -> str:
        written = encode(self)
        # Without these defaults, the text equals that of an earlier release's operator.
        if self.resume is ResumeMode.EXACT:
            del written["resume"]
        if self.task is Task.AUTO:
            del written["task"]
        return json.dumps(written, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Settings":
        """Reads GPUJOB_SETTINGS. Raises `FieldError` with the variable and the field."""
        return decode(cls, parse_json(text, ENV_SETTINGS), ENV_SETTINGS)
