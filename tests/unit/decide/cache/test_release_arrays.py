"""Expected ends of many jobs at once are those of each."""

from math import inf

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.decide.cache.release_arrays import NUMBERS_SPARE, UNKNOWN, End, Ends, Like

LIKES: tuple[Like, ...] = ((("team", "train"), 1), (("team", "train"), 8), (("team", "tune"), 1))
LENGTHS: dict[Like, float] = dict(zip(LIKES, (100.0, 50.0, inf), strict=True))
NOW = 1000.0
ENDS = st.builds(End, st.floats(0, 2000), st.sampled_from((None, *LIKES)))


def moments(ends: Ends, known: dict[str, End], *uids: str) -> list[float]:
    numbers = np.array([ends.number(uid) for uid in uids], dtype=np.int64)
    return ends.moments(numbers, lambda u: known.get(u, UNKNOWN), LENGTHS.__getitem__, NOW).tolist()


def test_a_run_that_took_longer_than_its_like_is_not_expected_to_end() -> None:
    known = {"soon": End(950.0, LIKES[0]), "over": End(900.0, LIKES[0]), "told": End(900.0)}
    assert moments(Ends(), known, "soon", "over", "told") == [1050.0, inf, 900.0]


def test_nobody_and_a_job_that_is_not_there_never_end() -> None:
    ends = Ends()
    assert moments(ends, {}, "gone") == [inf]
    nobody = np.zeros(2, np.int64)
    assert ends.moments(nobody, lambda _: End(0.0), LENGTHS.__getitem__, NOW).tolist() == [inf, inf]


@given(st.lists(st.dictionaries(st.integers(0, 199).map(str), ENDS, max_size=200), max_size=4))
def test_each_is_as_asked_alone(pictures: list[dict[str, End]]) -> None:
    ends, before = Ends(), dict[str, End]()
    for known in pictures:
        for uid in before.keys() | known.keys():
            if before.get(uid) != known.get(uid):
                ends.forget(uid)
        uids = sorted(before.keys() | known.keys())
        wanted = [known.get(uid, UNKNOWN) for uid in uids]
        lengths = [0.0 if end.like is None else LENGTHS[end.like] for end in wanted]
        assert moments(ends, known, *uids) == [
            end.moment(length, NOW) for end, length in zip(wanted, lengths, strict=True)
        ]
        before = known


def test_numbers_of_jobs_that_are_gone_are_taken_back_in_the_end() -> None:
    ends = Ends()
    moments(ends, {}, *(f"old-{number}" for number in range(NUMBERS_SPARE + 2)))
    numbers = ends.numbers
    ends.tidy(1)
    assert ends.numbers is numbers
    ends.tidy(0)
    assert ends.numbers is not numbers
    assert moments(ends, {"new": End(7.0)}, "new") == [7.0]
    assert ends.number("new") == 1
