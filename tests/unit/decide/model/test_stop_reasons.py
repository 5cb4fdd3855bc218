"""What follows from each reason to stop an attempt."""

from gpujob_api.gpujob import StopReason
from gpujob_operator.decide.model import stop_reasons
from gpujob_operator.decide.model.stop_reasons import STOP_RULES, StopRule, rule_of
from tests.harness.builders import T0


def test_every_reason_has_its_row() -> None:
    values = [value for name, value in vars(stop_reasons).items() if name.isupper()]
    assert {value for value in values if isinstance(value, str)} == STOP_RULES.keys()


def test_without_a_stop_or_a_known_reason_nobody_is_at_fault() -> None:
    assert rule_of(None) == StopRule()
    assert rule_of(StopReason("of another version", "", T0)) == StopRule()
    assert rule_of(StopReason("Migrated", "", T0)).for_others


def test_no_reason_is_two_things_at_once() -> None:
    for reason, rule in STOP_RULES.items():
        assert rule.for_others + (rule.failure is not None) + rule.is_consequence <= 1, reason
