from hypothesis import given
from hypothesis import strategies as st

from bench.sharing_model.interference import Calibration, Use, may_share, predicted_speeds

percents = st.floats(0, 100)
uses = st.builds(Use, percents, st.fixed_dictionaries({"network": percents}))


@given(st.lists(uses, min_size=1, max_size=4), percents)
def test_a_busier_gpu_is_never_faster(group: list[Use], more: float) -> None:
    before = predicted_speeds(group, Calibration())
    after = predicted_speeds([*group, Use(more)], Calibration())
    assert all(late <= early for early, late in zip(before, after, strict=False))
    assert all(0 < speed <= 1 for speed in after)


@given(st.lists(uses, min_size=1, max_size=4), st.floats(0, 200))
def test_allowed_means_within_every_limit(group: list[Use], limit: float) -> None:
    verdict = may_share(group, [limit] * len(group), Calibration())
    if verdict.allowed:
        assert all(100 * (1 / speed - 1) <= limit for speed in verdict.relative_speeds)
        assert len(group) == 1 or verdict.gain > 1


@given(st.lists(uses, min_size=2, max_size=4))
def test_the_same_in_any_order(group: list[Use]) -> None:
    forward = predicted_speeds(group, Calibration())
    backward = predicted_speeds(group[::-1], Calibration())
    assert all(abs(a - b) < 1e-9 for a, b in zip(forward, backward[::-1], strict=True))
