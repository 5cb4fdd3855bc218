"""Expected ends of many jobs at once are those of each."""

from dataclasses import dataclass, field
from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.decide.backfill.release_times import UNKNOWN, ReleaseTime, RunClass
from gpujob_operator.decide.cache.release_arrays import NUMBERS_SPARE, ReleaseArrays

LIKES: tuple[RunClass, ...] = (
    (("team", "train"), 1),
    (("team", "train"), 8),
    (("team", "tune"), 1),
)
LENGTHS: dict[RunClass, float] = dict(zip(LIKES, (100.0, 50.0, inf), strict=True))
NOW = 1000.0
ENDS = st.builds(ReleaseTime, st.floats(0, 2000), st.sampled_from((None, *LIKES)))


@dataclass
class Times:
    """Ends as they are told, of jobs that may come and go."""

    known: dict[str, ReleaseTime] = field(default_factory=dict[str, ReleaseTime])
    now_seconds: float = NOW
    version: int = 0

    def end(self, uid: str) -> ReleaseTime:
        return self.known.get(uid, UNKNOWN)

    def length(self, run_class: RunClass) -> float:
        return LENGTHS[run_class]


def moments(ends: ReleaseArrays, *uids: str) -> list[float]:
    numbers = np.array([ends.number(uid) for uid in uids], dtype=np.int64)
    return ends.released_at_all(numbers).tolist()


def test_a_run_that_took_longer_than_its_like_is_not_expected_to_end() -> None:
    known = {
        "soon": ReleaseTime(950.0, LIKES[0]),
        "over": ReleaseTime(900.0, LIKES[0]),
        "told": ReleaseTime(900.0),
    }
    assert moments(ReleaseArrays(Times(known)), "soon", "over", "told") == [1050.0, inf, 900.0]


def test_nobody_and_a_job_that_is_not_there_never_end() -> None:
    ends = ReleaseArrays(Times())
    assert moments(ends, "gone") == [inf]
    assert ends.released_at_all(np.zeros(2, np.int64)).tolist() == [inf, inf]


@given(st.lists(st.dictionaries(st.integers(0, 199).map(str), ENDS, max_size=200), max_size=4))
def test_each_is_as_asked_alone(pictures: list[dict[str, ReleaseTime]]) -> None:
    times = Times()
    ends = ReleaseArrays(times)
    for known in pictures:
        before, times.known = times.known, known
        uids = sorted(before.keys() | known.keys())
        for uid in uids:
            if before.get(uid) != known.get(uid):
                ends.forget(uid)
        wanted = [known.get(uid, UNKNOWN) for uid in uids]
        lengths = [0.0 if end.run_class is None else LENGTHS[end.run_class] for end in wanted]
        assert moments(ends, *uids) == [
            end.released_at(length, NOW) for end, length in zip(wanted, lengths, strict=True)
        ]


def test_numbers_of_jobs_that_are_gone_are_taken_back_in_the_end() -> None:
    times = Times()
    ends = ReleaseArrays(times)
    moments(ends, *(f"old-{number}" for number in range(NUMBERS_SPARE + 2)))
    numbers = ends.numbers
    ends.tidy(1)
    assert ends.numbers is numbers
    ends.tidy(0)
    assert ends.numbers is not numbers
    times.known = {"new": ReleaseTime(7.0)}
    assert moments(ends, "new") == [7.0]
    assert ends.number("new") == 1
