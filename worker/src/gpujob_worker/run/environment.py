"""The worker's environment variables, read once. An invalid value raises an error that names its
variable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gpujob_api.codec import FieldError
from gpujob_api.cpu_cards import VISIBLE_DEVICES, memory_of
from gpujob_api.settings import (
    ENV_ATTEMPT,
    ENV_CHECKPOINT_DIRECTORY,
    ENV_GRACE_SECONDS,
    ENV_MEMORY_LIMIT_BYTES,
    ENV_NAME,
    ENV_REPORT_URL,
    ENV_SETTINGS,
    ENV_TERMINATION_FILE,
    ENV_TOKEN_FILE,
    Settings,
)

GRACE_SECONDS_DEFAULT = 30.0
# The variables in which launchers put a process's number on its node: torch and DeepSpeed, Open
# MPI, MPICH and Intel, Slurm. The number of processes and this one's rank come from torch's process
# group, because some of these variables are also set if a process trains alone.
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


@dataclass(frozen=True, slots=True)
class Environment:
    """The values that the operator set. All have defaults, so that a script also runs by hand."""

    settings: Settings = field(default_factory=Settings)
    name: str = ""
    attempt: int = 1
    rank: int = 0
    world_size: int = 1
    # None if no launcher sets it.
    local_rank: int | None = None
    checkpoint_directory: Path | None = None
    report_url: str | None = None
    token_file: Path | None = None
    termination_file: Path | None = None
    memory_limit_bytes: int | None = None
    # None on GPUs.
    cpu_card_bytes: int | None = None
    grace_seconds: float = GRACE_SECONDS_DEFAULT


def read_environment(environ: Mapping[str, str], settings_text: str | None = None) -> Environment:
    """Reads the variables; `settings_text` replaces GPUJOB_SETTINGS. Raises `FieldError`."""
    text = settings_text if settings_text is not None else environ.get(ENV_SETTINGS, "")
    return Environment(
        settings=Settings.from_text(text) if text.strip() else Settings(),
        name=environ.get(ENV_NAME, ""),
        attempt=_integer(environ, ENV_ATTEMPT, minimum=1) or 1,
        rank=_integer(environ, "RANK", minimum=0) or 0,
        world_size=_integer(environ, "WORLD_SIZE", minimum=1) or 1,
        local_rank=_local_rank(environ),
        checkpoint_directory=_path(environ, ENV_CHECKPOINT_DIRECTORY),
        report_url=_url(environ, ENV_REPORT_URL),
        token_file=_path(environ, ENV_TOKEN_FILE),
        termination_file=_path(environ, ENV_TERMINATION_FILE),
        memory_limit_bytes=_integer(environ, ENV_MEMORY_LIMIT_BYTES, minimum=1),
        cpu_card_bytes=memory_of(environ.get(VISIBLE_DEVICES, "")),
        grace_seconds=_grace(environ),
    )


def _local_rank(environ: Mapping[str, str]) -> int | None:
    """Returns the process's number on its node. An invalid value is an error of the job in torch's
    own variable only.
    """
    for name in LOCAL_RANKS:
        text = environ.get(name, "").strip()
        if name == LOCAL_RANKS[0] and text:
            return _integer(environ, name, minimum=0)
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def _integer(environ: Mapping[str, str], name: str, *, minimum: int) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.lstrip("-").isascii() or not text.lstrip("-").isdigit():
        raise FieldError(name, f"must be a whole number; got {text!r}")
    number = int(text)
    if not minimum <= number < 2**63:
        raise FieldError(name, f"must be from {minimum} to 2^63 - 1; got {text}")
    return number


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    text = environ.get(name, "")
    if "\0" in text:
        raise FieldError(name, "must be a path; it has a zero byte")
    return Path(text) if text.strip() else None


def _url(environ: Mapping[str, str], name: str) -> str | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise FieldError(name, f"must be an http or https address; got {text!r}")
    return text


def _grace(environ: Mapping[str, str]) -> float:
    text = environ.get(ENV_GRACE_SECONDS, "").strip()
    try:
        seconds = float(text) if text else GRACE_SECONDS_DEFAULT
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86_400:
        raise FieldError(ENV_GRACE_SECONDS, f"must be above 0 and at most 86400; got {text!r}")
    return seconds
