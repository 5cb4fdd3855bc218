"""A price that no GPU has is logged, once."""

import logging
from dataclasses import replace

import pytest

from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.price_names import PriceNames
from tests.harness.builders import make_snapshot


def test_a_name_without_a_model_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    prices = Configuration(price_per_gpu_hour={"A10": 1.0, "A1000": 2.0})
    snapshot = replace(make_snapshot(), configuration=prices)
    names = PriceNames()
    with caplog.at_level(logging.WARNING):
        names.check(replace(snapshot, gpu_nodes=()))
        assert not caplog.records, "no agent has reported yet"
        for _ in range(3):
            names.check(snapshot)
    [record] = caplog.records
    keys = vars(record)["gpujob_keys"]
    assert (keys["names"], keys["models"]) == (["A1000"], ["NVIDIA A10"])


def test_names_that_all_mean_a_model_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    prices = Configuration(price_per_gpu_hour={"a10": 1.0})
    PriceNames().check(replace(make_snapshot(), configuration=prices))
    assert not caplog.records
