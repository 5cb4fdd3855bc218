from collections.abc import Sequence

from bench.sharing_model.interference import Calibration, SharingVerdict, Use
from bench.sharing_model.sharing import TENANTS_MAX, Tenant, choose_group, judge_by

JUDGE = judge_by(Calibration())


def tenant(utilization: float, limit: float = 30) -> Tenant:
    return Tenant(Use(utilization), limit)


def test_joins_where_most_work_is_gained() -> None:
    groups = [[tenant(90)], [tenant(30)], [tenant(60)]]
    choice = choose_group(tenant(20), groups, JUDGE)
    # 110 %: 1.58; 50 %: 1.93; 80 %: 1.79
    assert choice is not None
    assert choice.index == 1
    assert round(choice.gain, 2) == 0.93


def test_the_first_of_equals() -> None:
    choice = choose_group(tenant(20), [[tenant(70)], [tenant(70)]], JUDGE)
    assert choice is not None
    assert choice.index == 0


def test_nowhere_when_somebody_would_be_slowed_too_much() -> None:
    assert choose_group(tenant(20), [[tenant(90, limit=10)]], JUDGE) is None
    assert choose_group(tenant(20, limit=10), [[tenant(90)]], JUDGE) is None


def test_empty_and_full_groups_are_passed_over() -> None:
    full = [tenant(1)] * TENANTS_MAX
    assert choose_group(tenant(1), [[], full], JUDGE, tenants_max=99) is None
    assert choose_group(tenant(1), [[tenant(1), tenant(1)]], JUDGE, tenants_max=2) is None


def test_where_a_third_adds_nothing_it_waits() -> None:
    def judge(tenants: Sequence[Tenant]) -> SharingVerdict:
        return SharingVerdict(True, (1.5 / len(tenants),) * len(tenants), "")

    assert choose_group(tenant(1), [[tenant(1), tenant(1)]], judge) is None
