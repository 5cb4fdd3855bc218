"""The operator's configuration file: YAML with the fields of `Configuration` in camelCase."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpujob_api.bounds import shown
from gpujob_api.codec import FieldError, decode, encode
from gpujob_api.field_types import json_fields
from gpujob_api.json_values import clean_text
from gpujob_operator.decide.model.checkpoint_claim import ClaimTemplate
from gpujob_operator.decide.model.configuration import Configuration

WEEK_SECONDS = 604_800


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a number. `above` excludes the lower bound itself."""

    low: float = 0
    high: float = math.inf
    above: bool = False

    def problem(self, value: float) -> str:
        """Returns why the value is out of bounds, or "" if it is within."""
        if value < self.low or value > self.high or (self.above and value == self.low):
            least = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
            most = f" and at most {self.high:.10g}" if self.high < math.inf else ""
            return f"must be {least}{most}; got {value:.10g}"
        return ""


_SECONDS = Bounds(high=WEEK_SECONDS)
_POSITIVE_SECONDS = Bounds(high=WEEK_SECONDS, above=True)
# The chart's values.schema.json has the same bounds. Numbers without an entry must be at least 0.
BOUNDS: Mapping[str, Bounds] = {
    "memoryMarginFraction": Bounds(high=1),
    "measurementSamplesMin": Bounds(1, 1000),
    "measurementSamplesWithoutReportsMin": Bounds(1, 10_000),
    "preemptionsMax": Bounds(high=1000),
    "preemptionWaitSeconds": _SECONDS,
    "restartSeconds": _SECONDS,
    "terminationGraceSeconds": Bounds(1, 86_400),
    "terminationGraceSecondsMax": Bounds(1, 86_400),
    "nominateAfterSeconds": _POSITIVE_SECONDS,
    "telemetryStaleSeconds": _POSITIVE_SECONDS,
    "progressWriteSeconds": _POSITIVE_SECONDS,
    "pendingWriteSeconds": _POSITIVE_SECONDS,
    "startTimeoutSeconds": _POSITIVE_SECONDS,
    "imagePullTimeoutSeconds": _POSITIVE_SECONDS,
    "nodeLostSeconds": _POSITIVE_SECONDS,
    "retryBackoffSeconds": _POSITIVE_SECONDS,
    "retryBackoffMaxSeconds": _POSITIVE_SECONDS,
    "reportIntervalSeconds": _POSITIVE_SECONDS,
    "profileUnusedDays": Bounds(high=36_500),
}
PATTERNS: Mapping[str, str] = {
    "reportUrl": r"^(https?://.*)?$",
    "checkpointMount": r"^/",
    "runtimeClassName": r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$",
    "workerPackageImage": r"^\S*$",
    "gateImage": r"^\S*$",
}


def configuration_from_text(text: str) -> Configuration:
    """Reads the file's text. Absent fields have their defaults.

    Raises `FieldError` with the name of the field, also for an unknown field. Raises
    `yaml.YAMLError` if the text is not YAML.
    """
    data = _parsed(text)
    if not isinstance(data, dict):
        raise FieldError("configuration", f"must be an object; got {type(data).__name__}")
    configuration = decode(Configuration, data, "configuration")
    _refuse_unknown(data, Configuration, "configuration")
    template = data.get("checkpointClaimTemplate") or {}
    _refuse_unknown(template, ClaimTemplate, "configuration.checkpointClaimTemplate")
    for name, value in encode(configuration).items():
        problem = _problem(name, value)
        if problem:
            raise FieldError(f"configuration.{name}", problem)
    return configuration


def _refuse_unknown(data: Mapping[Any, Any], kind: type, path: str) -> None:
    unknown = {clean_text(str(name)) for name in data} - set(json_fields(kind))
    if unknown:
        raise FieldError(f"{path}.{min(unknown)}", "is an unknown field")


def _parsed(text: str) -> Any:
    try:
        return yaml.safe_load(text) or {}
    except (ValueError, ArithmeticError, RecursionError) as error:
        # Invalid dates, numbers with thousands of digits, and unlimited nesting.
        problem = clean_text(str(error))
        raise FieldError("configuration", f"is not valid YAML: {problem}") from None


def _problem(name: str, value: Any) -> str:
    if isinstance(value, str):
        pattern = PATTERNS.get(name)
        is_fine = pattern is None or re.match(pattern, value)
        return "" if is_fine else f"must match {pattern}; got {shown(value)}"
    numbers: Iterable[Any] = value.values() if isinstance(value, dict) else [value]
    bounds = BOUNDS.get(name, Bounds())
    problems = (bounds.problem(one) for one in numbers if isinstance(one, int | float))
    return next((problem for problem in problems if problem), "")
