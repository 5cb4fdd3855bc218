"""One public script, run three times: as it is, with everything measured, with all applied."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.hooked import Run, applied, execute, hooked_environment, injected, refused
from bench.refusals import REFUSED, SKIPPED
from bench.scripts.catalogue import Script

# A script that sets no seed draws other numbers in every process, from torch too.
SEEDED = """
import random
random.seed(1)
try: import numpy
except ImportError: pass
else: numpy.random.seed(1)
import torch
torch.manual_seed(1)
"""
OPTIONS = "--explain --tuning-seconds 5"
ONLY_MEASURED = {"mode": "Recommend"}
# What is a time, a rate or a process in what scripts print, whatever the unit is called.
TIMES = re.compile(
    r"(?m:^\d+\t)"  # a process by its number
    r"|\d+:\d\d(:\d\d)?([.,]\d+)?"  # of a clock
    r"| *\d[\d.]*e?[+-]?\d* ?\[?(ms|us|s|sec|seconds|it/s|/s)\b"
    r"|(SPS|ms/batch|Time|Data|[Rr]ate|mfu|img/s)\W*[\d.]+%?( *\([^)]*\))?"
    r"|\d{4}-\d\d-\d\d|\d{9,}"
)
ALIKE = 0.02
COLUMNS = ("script", "injected", "applied", SKIPPED, "measured", "loss", "with", "result")


@dataclass(frozen=True, slots=True)
class Ground:
    """The checkouts, the scripts' interpreter, the hook that is put in front of it, and settings
    that are asked for.
    """

    data: Path
    python: Path
    hook: Path
    settings: Mapping[str, Any]


def row(name: str, script: Script, ground: Ground, folder: Path) -> dict[str, Any]:
    """What became of it; runs are kept in `folder`."""
    plain = run(script, ground, folder / "plain", None)
    if plain.code:
        said = (plain.errors.strip().splitlines() or [""])[-1]
        return {"script": name, "result": f"fails as it is: {said[:100]}"}
    only_measured = _options({**ground.settings, **ONLY_MEASURED})
    measured = run(script, ground, folder / "measured", only_measured)
    hooked = run(script, ground, folder / "hooked", _options(ground.settings))
    found: dict[str, Any] = {"script": name, "injected": injected(hooked, trains=True)}
    found["applied"], found[REFUSED] = applied(hooked), refused(hooked)
    found["measured"] = _of_measured(plain, measured)
    found["loss"], found["with"] = (_value(script, run) or "-" for run in (plain, hooked))
    return {**found, "result": judge(script, plain, hooked)}


def _options(settings: Mapping[str, Any]) -> str:
    asked = ["--settings", json.dumps(settings)] if settings else []
    return shlex.join([*shlex.split(OPTIONS), *asked])


def run(script: Script, ground: Ground, folder: Path, options: str | None) -> Run:
    """In a copy of the script's folder; hooked where there are options."""
    checkout = ground.data / script.checkout
    place = folder / "checkout" / script.folder
    _copy(script, checkout / script.folder, place)
    for where, make in script.data.items():
        make(place / where)
    (folder / "seeds").mkdir()
    (folder / "seeds" / "sitecustomize.py").write_text(SEEDED)
    variables = {} if options is None else hooked_environment(folder, options, ground.hook)
    own = [str((checkout / path).resolve()) for path in script.path]
    path = [variables.get("PYTHONPATH", ""), str(folder / "seeds"), *own]
    own_variables = _environment(ground.python)
    variables |= own_variables | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    return execute(script.command, folder, variables, place)


def _environment(python: Path) -> dict[str, str]:
    return {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "Agg",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _copy(script: Script, source: Path, place: Path) -> None:
    if not script.only:
        shutil.copytree(source, place, ignore=shutil.ignore_patterns(".git", "*.ipynb"))
        return
    place.mkdir(parents=True)
    for pattern in script.only:
        for path in source.glob(pattern):
            if path.is_dir():
                shutil.copytree(path, place / path.name)
            else:
                shutil.copy(path, place)


def said(run: Run) -> str:
    """What a run printed, without times and without its own folder."""
    text = re.sub(r"/\S*/(plain|measured|hooked)/", "/", run.output)
    return TIMES.sub("#", text)


def _value(script: Script, run: Run) -> str | None:
    found = re.findall(script.value, run.output) or re.findall(script.value, run.errors)
    return found[-1].rstrip(".") if found else None


def _of_measured(plain: Run, measured: Run) -> str:
    """Whether a run in which everything is measured and nothing applied printed the same."""
    if measured.code:
        return f"exit {measured.code}"
    before, after = said(plain).splitlines(), said(measured).splitlines()
    if before == after:
        return "identical"
    differing = sum(a != b for a, b in zip(before, after, strict=False))
    return f"{differing + abs(len(before) - len(after))} of {len(before)} lines differ"


def judge(script: Script, plain: Run, hooked: Run) -> str:
    """What a run is called beside the one of the script as it is."""
    if hooked.code:
        return f"exit {hooked.code}"
    if said(plain) == said(hooked):
        return "identical"
    before, after = _value(script, plain), _value(script, hooked)
    if before is None or after is None:
        return "other output"
    apart = abs(float(after) - float(before))
    return "close" if apart <= ALIKE * abs(float(before)) else "differs"


def interpreter(given: Path | None) -> Path:
    """The interpreter whose packages the scripts use; not resolved, or it would leave its own."""
    return Path(os.path.abspath(given)) if given is not None else Path(sys.executable)
