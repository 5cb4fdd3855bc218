"""A path that no checkpoint of the script matches is said, and taken back once one is there."""

from pathlib import Path

from gpujob_api.report import Protection
from gpujob_api.settings import Settings
from gpujob_worker.resume.own_checkpoints import (
    LOOK_PART,
    LOOK_SECONDS,
    NOTHING_SECONDS,
    OwnCheckpoints,
)
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session


class Clock:
    """Each reading takes `reading_seconds`: so long takes a look."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.reading_seconds = 0.0

    def __call__(self) -> float:
        self.now += self.reading_seconds
        return self.now


def started(directory: Path, pattern: str = "own/*.pt", steps: int = 1) -> Session:
    settings = Settings(script_checkpoint=pattern)
    session = Session(Environment(settings=settings, checkpoint_directory=directory))
    session.meter.steps = steps
    return session


def test_a_path_that_nothing_matches_is_said_and_taken_back(tmp_path: Path) -> None:
    session, clock = started(tmp_path), Clock()
    own = OwnCheckpoints(session, "own/*.pt", clock)
    session.before_report(own.look)
    (tmp_path / "own").mkdir()
    assert session.report().protection is None
    clock.now += NOTHING_SECONDS - 1
    assert session.report().protection is None
    clock.now += LOOK_SECONDS
    report = session.report()
    assert report.protection is Protection.FROM_BEGINNING
    assert report.protection_reason is not None
    assert "nothing matches checkpoint.path (own/*.pt) 5 minutes after" in report.protection_reason
    assert str(tmp_path / "own/*.pt")[:128] in report.protection_reason
    (tmp_path / "own" / "last.pt").write_bytes(b"saved")
    clock.now += LOOK_SECONDS
    report = session.report()
    assert report.protection is Protection.BEST_EFFORT
    assert "protection own checkpoint last.pt: BestEffort" in report.explain


def test_the_last_report_of_an_interruption_has_what_was_saved_a_moment_ago(
    tmp_path: Path,
) -> None:
    session, clock = started(tmp_path, "last.pt"), Clock()
    session.before_report(OwnCheckpoints(session, "last.pt", clock).look)
    assert session.report().protection is None
    (tmp_path / "last.pt").write_bytes(b"saved")
    assert session.report().protection is None, "looked again at once"
    session.stop.request("Suspended", 30.0)
    assert session.report().protection is Protection.BEST_EFFORT


def test_nothing_is_looked_for_before_the_first_step_nor_beside_rank_0(tmp_path: Path) -> None:
    (tmp_path / "last.pt").write_bytes(b"saved")
    waiting, second = started(tmp_path, "last.pt", steps=0), started(tmp_path, "last.pt")
    second.joins(1, 2)
    for session in (waiting, second):
        session.before_report(OwnCheckpoints(session, "last.pt", Clock()).look)
        assert session.report().protection is None


def test_a_slow_look_is_a_seldom_one(tmp_path: Path) -> None:
    session, clock = started(tmp_path, "last.pt"), Clock()
    session.before_report(OwnCheckpoints(session, "last.pt", clock).look)
    clock.reading_seconds = 2.0
    session.report()
    clock.reading_seconds = 0.0
    (tmp_path / "last.pt").write_bytes(b"saved")
    clock.now += LOOK_PART * 2.0 - 4.0
    assert session.report().protection is None
    clock.now += 4.0
    assert session.report().protection is Protection.BEST_EFFORT


def test_an_empty_folder_is_no_checkpoint(tmp_path: Path) -> None:
    session, clock = started(tmp_path, "own"), Clock()
    session.before_report(OwnCheckpoints(session, "own", clock).look)
    (tmp_path / "own").mkdir()
    assert session.report().protection is None
    (tmp_path / "own" / "weights.safetensors").write_bytes(b"saved")
    clock.now += LOOK_SECONDS
    assert session.report().protection is Protection.BEST_EFFORT
