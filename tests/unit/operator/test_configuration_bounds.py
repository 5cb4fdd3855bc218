"""What the chart refuses, the operator refuses in its file, too, by name and with the number."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from gpujob_api.codec import FieldError
from gpujob_operator.decide.model.checkpoint_claim import ClaimSize, ClaimTemplate
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.read.configuration import configuration_from_text
from tests.harness.repository import ROOT

SCHEMA: Mapping[str, Mapping[str, Any]] = json.loads(
    (ROOT / "charts/gpujob/values.schema.json").read_text()
)["properties"]["configuration"]["properties"]
NUMBERS = [name for name, schema in SCHEMA.items() if schema.get("type") in ("number", "integer")]


def read(name: str, value: object) -> Configuration:
    return configuration_from_text(yaml.safe_dump({name: value}))


def refusal(name: str, value: object) -> str:
    with pytest.raises(FieldError) as caught:
        read(name, value)
    assert caught.value.field == f"configuration.{name}"
    return caught.value.problem


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_bounded_as_in_the_chart(name: str) -> None:
    schema = SCHEMA[name]
    step: Any = 1 if schema["type"] == "integer" else 0.5
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"]
        assert f"above {low}" in refusal(name, low)
        read(name, low + step)
    else:
        low = schema["minimum"]
        assert f"at least {low}" in refusal(name, low - step)
        read(name, low)
    if "maximum" in schema:
        high = schema["maximum"]
        assert f"at most {high}" in refusal(name, high + step)
        read(name, high)
    else:
        read(name, 10**12)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pricePerGpuHour", {"A10": 1.0, "H100": -1.0}),
        ("spotPricePerGpuHour", {"A10": -0.1}),
        ("checkpointMount", "checkpoints"),
        ("reportUrl", "operator:8080"),
        ("runtimeClassName", "NVIDIA Runtime"),
    ],
)
def test_other_nonsense_is_refused_with_the_value(name: str, value: object) -> None:
    assert "got" in refusal(name, value)


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"size": "1 GB"}, "size"),
        ({}, "size"),
        ({"size": "1Gi", "accessModes": ["ReadOnlyMany"]}, "accessModes[0]"),
        ({"size": "1Gi", "accessModes": []}, "accessModes"),
        ({"size": "1Gi", "storageClassName": "Fast"}, "storageClassName"),
        ({"size": "1Gi", "storageClass": "fast"}, "storageClass"),
        ("1Gi", ""),
    ],
    ids=str,
)
def test_a_template_of_claims_is_refused_by_its_field(template: object, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        read("checkpointClaimTemplate", template)
    path = f"configuration.checkpointClaimTemplate.{field}"
    assert caught.value.field == path.removesuffix(".")


def test_a_template_of_claims_is_taken_as_the_chart_takes_it() -> None:
    assert read("checkpointClaimTemplate", {"size": "20Gi"}) == Configuration(
        checkpoint_claim_template=ClaimTemplate(ClaimSize(20 * 1024**3))
    )


@pytest.mark.parametrize(
    "text", ["runtimeClassName: ''", "reportUrl: ''", "pricePerGpuHour: {A10: 0}", ""]
)
def test_what_says_nothing_is_taken(text: str) -> None:
    configuration_from_text(text)
