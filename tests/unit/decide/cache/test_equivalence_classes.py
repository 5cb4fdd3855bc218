"""Numbers of classes hold while they are remembered, and are never given to another class."""

import pytest

from gpujob_operator.decide.cache import pending_queues as equivalence_classes
from gpujob_operator.decide.cache.pending_queues import EquivalenceClasses


def test_numbers_tell_classes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivalence_classes, "CLASSES_MAX", 2)
    classes = EquivalenceClasses()
    assert [classes.number(of) for of in "abab"] == [1, 2, 1, 2]
    assert [classes.number(of) for of in "cab"] == [3, 4, 5]
