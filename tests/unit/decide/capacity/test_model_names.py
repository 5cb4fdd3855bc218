"""Names of GPU models as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.decide.capacity.model_names import (
    accepted_models,
    means,
    price_names_without_model,
)
from gpujob_operator.decide.model.configuration import Configuration

H100, NVL, A100, A10 = "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA A100-PCIE", "NVIDIA A10"
PRESENT = (H100, NVL, A100, A10)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((), sorted(PRESENT)),
        (("h100",), [H100, NVL]),
        (("H100 HBM3",), [H100]),
        (("a10",), [A10]),
        (("A10", "nvl"), [A10, NVL]),
        ((A10,), [A10]),
        (("V100",), []),
        (("-",), []),
    ],
)
def test_a_name_is_any_model_with_its_words(names: tuple[str, ...], found: list[str]) -> None:
    assert accepted_models(names, PRESENT) == found


def test_a_full_name_means_that_model_alone() -> None:
    assert accepted_models(("NVIDIA H100",), ("NVIDIA H100", NVL)) == ["NVIDIA H100"]


@given(st.lists(st.sampled_from(PRESENT), unique=True), st.sampled_from(PRESENT))
def test_every_model_means_itself_in_any_case(present: list[str], model: str) -> None:
    assert means(model.lower(), model)
    assert (model in accepted_models((model,), present)) == (model in present)
    assert (model in accepted_models((model.upper(),), present)) == (model in present)


@given(st.lists(st.text(max_size=9), max_size=4), st.lists(st.text(max_size=9), max_size=4))
def test_only_present_models_are_found(names: list[str], present: list[str]) -> None:
    assert set(accepted_models(names, present)) <= set(present)


def test_prices_that_never_count_are_named() -> None:
    configuration = Configuration(
        price_per_gpu_hour={"h100": 3.0, "V100": 1.0}, spot_price_per_gpu_hour={"T4": 0.2}
    )
    assert price_names_without_model(configuration, PRESENT) == ["T4", "V100"]
    assert price_names_without_model(configuration, ()) == ["T4", "V100", "h100"]
