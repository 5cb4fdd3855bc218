"""The short form of a GPUJob's spec. It becomes the long form when a spec is read.

`image`, `command`, `args` and `env` stand for a template with one container, and `gpus` for
`gpusPerWorker` and `gpu.models`. All other code reads the long form alone, so jobs that differ only
in their form get equal decisions, pods and fingerprints.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

from gpujob_api.bounds import Items, Text, shown
from gpujob_api.codec import FieldError, decode
from gpujob_api.gpujob import GPUS_PER_WORKER_MAX, WORKER_CONTAINER

# A number, a model, or a model and a number. Models have a letter, so that no number is a model.
GPUS_PATTERN = r"^([1-9]|1[0-6]|[^:]*[A-Za-z][^:]*(:([1-9]|1[0-6]))?)$"
GPUS_CHARACTERS_MAX = 128
_GPUS = re.compile(GPUS_PATTERN)
_Argument = Annotated[str, Text(131_072)]


@dataclass(frozen=True, slots=True)
class GPUs:
    """The number of GPUs of each worker, and their model or ""."""

    count: int = 1
    model: str = ""

    @classmethod
    def from_json(cls, value: object, path: str) -> "GPUs":
        if isinstance(value, int) and not isinstance(value, bool):
            if 1 <= value <= GPUS_PER_WORKER_MAX:
                return cls(value)
        elif isinstance(value, str) and _is_gpus(value):
            if value.isdigit():
                return cls(int(value))
            model, _, count = value.partition(":")
            return cls(int(count or 1), model)
        raise FieldError(
            path,
            f"must be a number from 1 to {GPUS_PER_WORKER_MAX}, a model, or both, such as 2, H100 "
            f"or H100:2; got {shown(value)}",
        )


def _is_gpus(text: str) -> bool:
    return len(text) <= GPUS_CHARACTERS_MAX and _GPUS.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Variable:
    name: Annotated[str, Text(256, characters_min=1)]
    value: Annotated[str, Text(131_072)] | None = None
    value_from: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ShortForm:
    """The fields of the short form, with the bounds of the CRD."""

    image: Annotated[str, Text(1024, characters_min=1)] | None = None
    command: Annotated[tuple[_Argument, ...], Items(256)] | None = None
    args: Annotated[tuple[_Argument, ...], Items(256)] | None = None
    env: Annotated[tuple[Variable, ...], Items(256, keys=("name",))] | None = None
    gpus: GPUs | None = None


_OF_CONTAINER = ("image", "command", "args", "env")
SHORT_FIELDS = frozenset((*_OF_CONTAINER, "gpus"))


def expanded(spec: object) -> object:
    """Returns a GPUJob's `spec` in the long form. A spec without a field of the short form is
    returned as it is.

    Raises `FieldError` with a path below `spec`.
    """
    if not isinstance(spec, Mapping) or SHORT_FIELDS.isdisjoint(cast("Mapping[str, Any]", spec)):
        return spec
    fields = {name: one for name, one in cast("Mapping[str, Any]", spec).items() if one is not None}
    short = {name: fields.pop(name) for name in SHORT_FIELDS if name in fields}
    gpus = decode(ShortForm, short, "spec").gpus
    container = {name: short[name] for name in _OF_CONTAINER if name in short}
    if gpus is not None:
        _set_gpus(fields, gpus)
    if container:
        _set_template(fields, container)
    return fields


def _set_gpus(fields: dict[str, Any], gpus: GPUs) -> None:
    # The API server adds the default, 1, to a spec without gpusPerWorker.
    if fields.get("gpusPerWorker", 1) != 1:
        raise _combined("gpusPerWorker")
    request = fields.get("gpu", {})
    if not isinstance(request, Mapping):
        # The reader of the long form has the error.
        return
    if cast("Mapping[str, Any]", request).get("models"):
        raise _combined("gpu.models")
    fields["gpusPerWorker"] = gpus.count
    if gpus.model:
        fields["gpu"] = {**request, "models": [gpus.model]}


def _combined(other: str) -> FieldError:
    return FieldError("spec.gpus", f"cannot be combined with {other}; leave one of them out")


def _set_template(fields: dict[str, Any], container: dict[str, Any]) -> None:
    if "template" in fields:
        named = ", ".join(container)
        raise FieldError(
            f"spec.{next(iter(container))}",
            f"cannot be combined with template; move {named} into the container of template",
        )
    if "image" not in container:
        raise FieldError("spec.image", "is required without template")
    fields["template"] = {"spec": {"containers": [{"name": WORKER_CONTAINER, **container}]}}
