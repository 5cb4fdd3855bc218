"""Numbers for people: durations, ages, changes, ordinals."""

import re
from datetime import datetime

from gpujob_api.gpujob import GPUJob, Placement
from gpujob_api.meta import ConditionStatus
from gpujob_api.report import Protection, Speedup
from gpujob_api.settings import TunedSettings
from gpujob_operator.decide.model.conditions import UNPROTECTED, find
from kubectl_gpujob.errors import UserError

SECONDS_MAX = 30 * 86_400.0
_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PROTECTION = {
    Protection.EXACT: "resumes exactly",
    Protection.BEST_EFFORT: "resumes from its newest checkpoint, not exactly",
}
_ALWAYS_SAID = ("precision", "batch_per_step", "compile", "activation_checkpointing")


def duration(seconds: float) -> str:
    """Returns the two largest units: 850 ms, 12 s, 3m 20s, 2h 05m, 4d 3h."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def age(moment: datetime | None, now: datetime) -> str:
    """Returns the age in whole seconds, because two clocks are compared."""
    if moment is None:
        return ""
    seconds = max(round((now - moment).total_seconds()), 0)
    return duration(seconds) if seconds else "0 s"


def unprotected(job: GPUJob) -> str:
    """Returns why an interruption loses work of the job, or ""."""
    found = find(job.status, UNPROTECTED)
    return found.message if found is not None and found.status is ConditionStatus.TRUE else ""


def protection(job: GPUJob) -> str:
    """Returns what an interruption preserves of the job, or "" while that is not known."""
    known = job.status.protection
    return unprotected(job) or (_PROTECTION.get(known, "") if known is not None else "")


def change_percent(before: float, after: float) -> str:
    """Returns -48 % for a fall by 48 per cent, or an empty text without a reference."""
    return f"{(after - before) / before:+.0%}".replace("%", " %") if before > 0 else ""


def speedup(gain: Speedup) -> str:
    interval = f"95 % {gain.low:.2f} to {gain.high:.2f}, {gain.pairs} pairs in turns"
    return f"{gain.ratio:.2f}x as fast as without settings ({interval})"


def ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def placement(where: Placement) -> list[str]:
    """Returns one line for each worker: its node and its GPUs."""
    spot = " (spot)" if where.spot else ""
    model = f", {where.gpu_model}" if where.gpu_model else ""
    return [
        f"rank {worker.rank} on {worker.node}{spot}: {', '.join(worker.gpus)}{model}"
        for worker in where.workers
    ]


def settings(tuned: TunedSettings, job: GPUJob) -> str:
    """Returns the applied settings in one line."""
    parts = [tuned.precision.value]
    total = job.spec.optimize.batch_size.total
    if tuned.batch_per_step is not None:
        whole = f" of {total}" if total is not None else ""
        parts.append(f"{tuned.batch_per_step}{whole} samples at once")
    parts.append(f"compile {'on' if tuned.compile else 'off'}")
    recompute = "on" if tuned.activation_checkpointing else "off"
    parts.append(f"activation checkpointing {recompute}")
    # The others are shown only if they are applied.
    others = [said for name, said in tuned.in_words().items() if name not in _ALWAYS_SAID]
    return ", ".join(parts + others)


def seconds_of(text: str, option: str) -> float:
    """Parses 90s, 30m, 24h, 7d, at most 30d. Raises `UserError` naming the option."""
    match = _DURATION.fullmatch(text)
    seconds = int(match[1]) * _UNIT_SECONDS[match[2]] if match else 0
    if not 1 <= seconds <= SECONDS_MAX:
        raise UserError(f"{option}: must be such as 90s, 30m, 24h or 7d, at most 30d; got {text!r}")
    return float(seconds)
