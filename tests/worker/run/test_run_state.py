"""The state of a run has owners: nobody else writes into it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpujob_worker
from gpujob_api.report import Speedup, Timing, WorkerPhase
from gpujob_api.settings import TunedSettings
from gpujob_worker.device.memory import CpuMemory
from gpujob_worker.run.meter import Meter
from gpujob_worker.run.run_state import RunState

pytestmark = pytest.mark.any_torch

SOURCES = Path(gpujob_worker.__file__).parent
# By the name under which others hold it, the module that may write into it.
OWNERS = {
    "state": "run/run_state.py",
    "session": "run/session.py",
    "model": "control/trained_model.py",
    "root": "inject/wrapped_module.py",
    "tuner": "tune/tuner.py",
    "stop": "run/graceful_stop.py",
    "log": "run/decision_log.py",
}


def targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else []


def written(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(who, attribute) of `who.attribute = ...` and `x.who.attribute = ...`."""
    pending = [target for node in ast.walk(tree) for target in targets(node)]
    while pending:
        target = pending.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            pending += target.elts
        elif isinstance(target, ast.Attribute):
            held = target.value
            name = held.id if isinstance(held, ast.Name) else getattr(held, "attr", "")
            yield name.lstrip("_"), target.attr


def test_the_check_sees_writes() -> None:
    tree = ast.parse("a.session.x = 1\n_state.y, z = 1, 2\nmodel.n += 1\nself.tuner.a: int = 0\n")
    assert set(written(tree)) == {
        ("session", "x"),
        ("state", "y"),
        ("model", "n"),
        ("tuner", "a"),
    }


def test_nobody_else_writes_into_what_has_an_owner() -> None:
    found = [
        (path.relative_to(SOURCES).as_posix(), who, attribute)
        for path in sorted(SOURCES.rglob("*.py"))
        for who, attribute in written(ast.parse(path.read_text()))
        if path.relative_to(SOURCES).as_posix() != OWNERS.get(who, "")
    ]
    # The stop is given what it may ask when the session makes it, how the whole run ends, and
    # what saves a script that it interrupts. The session is told how a forked child begins.
    # Settings are applied in one place.
    allowed = {
        ("run/session.py", "stop", "interrupt_at_once"),
        ("process.py", "stop", "end_run"),
        ("resume/plain_script.py", "stop", "heard"),
        ("serving/batched_stop.py", "stop", "heard"),
        ("hooks.py", "session", "begin_in_child"),
        ("tune/registry.py", "root", "plan"),
    }
    assert [entry for entry in found if entry[1] in OWNERS and entry not in allowed] == []


def state() -> RunState:
    return RunState(Meter(CpuMemory()))


def test_a_phase_lasts_as_long_as_what_it_is_of() -> None:
    run = state()
    run.enter(WorkerPhase.TRAINING)
    with run.during(WorkerPhase.CHECKPOINTING):
        assert run.phase is WorkerPhase.CHECKPOINTING
    assert run.phase is WorkerPhase.TRAINING
    with pytest.raises(OSError, match="full"), run.during(WorkerPhase.CHECKPOINTING):
        raise OSError("the disk is full")
    assert run.phase is WorkerPhase.TRAINING


def test_a_stop_that_comes_meanwhile_stays() -> None:
    run = state()
    with run.during(WorkerPhase.CHECKPOINTING):
        run.enter(WorkerPhase.DRAINING)
    assert run.phase is WorkerPhase.DRAINING


def test_a_speed_up_is_reported_with_what_it_was_measured_of() -> None:
    """Workers of a loader and the next process's allocator come later, and change no step."""
    run, gain = state(), Speedup(1.42, 1.38, 1.46, 10)
    run.gained(TunedSettings(fused_optimizer=True), gain)
    later = TunedSettings(fused_optimizer=True, data_loader_workers=2, expandable_segments=True)
    run.settings_are(later)
    assert run.speedup == gain
    run.settings_are(TunedSettings(channels_last=True))
    assert run.speedup is None


def test_what_nothing_changed_takes_as_long_before_as_after() -> None:
    """The first steps set libraries up, and a script captures graphs of its own in them."""
    run = state()
    first = Timing(0.0054, 70)
    run.measured_first(first, 20.0)
    assert (run.as_written, run.as_written_wait_percent) == (first, 20.0)
    run.settings_are(TunedSettings(expandable_segments=True))
    assert run.as_written == first, "no step since"
    window = run.meter.window
    window.seconds.extend([0.0003] * 9)
    window.total_seconds, window.wait_seconds = 0.0027, 0.0
    assert run.as_written == run.current == Timing(0.0003, 0)
    assert run.as_written_wait_percent == 0.0
    for changed in (TunedSettings(fused_optimizer=True), TunedSettings(data_loader_workers=2)):
        run.settings_are(changed)
        assert (run.as_written, run.as_written_wait_percent) == (first, 20.0)
