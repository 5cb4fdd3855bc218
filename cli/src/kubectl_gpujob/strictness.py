"""Checks that the API server makes and the nouns do not: fields that do not exist, and pods without
an image.

They are for files that the API server does not check.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, GPUJobSpec
from gpujob_api.short_form import expanded
from gpujob_api.unknown_fields import unknown_paths

_OBJECT = ("apiVersion", "kind", "metadata", "spec", "status")
_TEMPLATE = ("metadata", "spec")
_CONTAINERS = ("containers", "initContainers")


def refuse_unknown_fields(spec_kind: type, manifest: Mapping[str, Any]) -> None:
    """Raises `FieldError` for unknown fields, in the words of the API server.

    Fields below the template's spec are left to the API server.
    """
    spec = _object(manifest.get("spec"))
    spec = _object(expanded(spec)) if spec_kind is GPUJobSpec else spec
    unknown = [name for name in manifest if name not in _OBJECT]
    unknown += unknown_paths(spec_kind, spec, "spec")
    template = _object(spec.get("template"))
    unknown += [f"spec.template.{name}" for name in template if name not in _TEMPLATE]
    if unknown:
        named = ", ".join(f'unknown field "{path}"' for path in sorted(unknown))
        raise FieldError("strict decoding error", named)


def refuse_missing_images(job: GPUJob) -> None:
    """Raises `FieldError` for a container without an image, as the API server does."""
    pod = _object(job.spec.template.get("spec"))
    for kind in _CONTAINERS:
        listed = pod.get(kind)
        containers = cast("Sequence[object]", listed) if isinstance(listed, list | tuple) else ()
        for index, container in enumerate(containers):
            if not _object(container).get("image"):
                raise FieldError(f"spec.template.spec.{kind}[{index}].image", "Required value")


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
