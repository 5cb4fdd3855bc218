"""An act of `bench.shared_gpu` that fails does not cost the acts after it."""

from types import SimpleNamespace
from typing import Any

import pytest

from bench.shared.acts import Found
from bench.shared_gpu import Stopped, _told
from gpujob_local.demo.following import StoryError
from gpujob_local.demo.telling import Claim


@pytest.fixture
def stage() -> Any:
    claims: list[tuple[str, bool]] = []

    def claim(title: str, holds: bool, *_: str) -> None:
        claims.append((title, holds))

    return SimpleNamespace(teller=SimpleNamespace(claim=claim), claims=claims)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (StoryError("steady: not within 60 s"), "steady: not within 60 s"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError('division by zero')"),
    ],
)
def test_an_act_that_raises_has_failed(error: Exception, failure: str, stage: Any) -> None:
    def act() -> Found:
        raise error

    assert _told(act, stage) == {"claims": [], "rows": [], "failure": failure}
    assert stage.claims == [("The act ran to its end", False)]


def test_a_signal_ends_the_run_and_not_the_act_alone(stage: Any) -> None:
    def act() -> Found:
        raise Stopped("SIGTERM")

    with pytest.raises(Stopped):
        _told(act, stage)
    assert not stage.claims


def test_an_act_returns_its_claims(stage: Any) -> None:
    found = Found([Claim("It holds", True, ())], [], {})
    assert _told(lambda: found, stage) == found.result()
    assert stage.claims == [("It holds", True)]
