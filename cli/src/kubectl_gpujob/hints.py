"""Next steps for a refused GPUJob: the nearest field, the form of a command or a time.

The API server names only the field that it refuses.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from typing import cast

from gpujob_api.field_types import bare_type, bounded_fields
from gpujob_api.gpujob import GPUJobSpec
from gpujob_api.short_form import ShortForm

HINTS_MAX = 5
POD_FIELDS = (
    *("activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers"),
    *("dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases", "hostUsers"),
    *("imagePullSecrets", "initContainers", "nodeSelector", "preemptionPolicy"),
    *("priorityClassName", "restartPolicy", "runtimeClassName", "schedulerName"),
    *("securityContext", "serviceAccountName", "shareProcessNamespace"),
    *("terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes"),
)
CONTAINER_FIELDS = (
    *("args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle"),
    *("livenessProbe", "name", "ports", "readinessProbe", "resources", "securityContext"),
    *("startupProbe", "stdin", "stdinOnce", "terminationMessagePath", "tty", "volumeDevices"),
    *("terminationMessagePolicy", "volumeMounts", "workingDir"),
)
# Fields of a pod that a template does not have: the operator decides them, or they would open the
# node to the job.
NOT_AVAILABLE = (
    *("ephemeralContainers", "hostIPC", "hostNetwork", "hostPID", "hostname", "hostnameOverride"),
    *("nodeName", "os", "overhead", "priority", "readinessGates", "resourceClaims", "resources"),
    *("schedulingGates", "schedulingGroup", "serviceAccount", "setHostnameAsFQDN", "subdomain"),
)
_UNKNOWN = re.compile(r'unknown field "([^"]{1,512})"')
_ONE_WORD = re.compile(r"\.(command|args): Invalid value: .*must be of type array")
# In the words of the API server and in those of the nouns.
_SECONDS = re.compile(
    r"[sS]econds\w*: (?:Invalid value: .*must be of type integer|must be int, not)"
)
_INTERVAL = re.compile(
    r"checkpoint\.interval: (?:Invalid value: .*(?:should match|must be of type)|must )"
)
_NAME_CHARACTERS_MIN = 3
_POD, _CONTAINER = "spec.template.spec", re.compile(r"spec\.template\.spec\.\w+\[\d+\]")


def with_hints(words: str) -> str:
    """Returns the words of a refusal, followed by next steps if there are any."""
    found = [hint_of(path) for path in _UNKNOWN.findall(words)]
    if _ONE_WORD.search(words) is not None:
        found.append("write the command as a list of words, such as [python, train.py]")
    if _SECONDS.search(words) is not None:
        found.append("give the seconds as a whole number, such as 3600 for one hour")
    if _INTERVAL.search(words) is not None:
        found.append("give Auto, or a whole number of s, m or h, such as 30s, 10m or 2h")
    return "; ".join((words, *dict.fromkeys(filter(None, found[:HINTS_MAX]))))


def hint_of(path: str) -> str:
    """Returns the next step for a field that does not exist, or ""."""
    parent, _, name = path.rpartition(".")
    if parent == _POD and name in NOT_AVAILABLE:
        return f"{name} is not available in a GPUJob"
    if parent != "spec" and f"spec.{name}" in spec_paths():
        # A field of the spec at a wrong depth.
        return f"did you mean spec.{name}?"
    if parent == _POD:
        near = _sibling(path, POD_FIELDS)
    elif _CONTAINER.fullmatch(parent):
        near = _sibling(path, CONTAINER_FIELDS)
    elif parent in spec_paths():
        beside = (one.removeprefix(f"{parent}.") for one in spec_paths())
        near = _sibling(path, [one for one in beside if "." not in one])
    else:
        near = _nearest(path, spec_paths())
        if not near and parent == "spec" and len(name) >= _NAME_CHARACTERS_MIN:
            near = _sibling(
                path, [one.split(".")[1] for one in spec_paths() if one.count(".") == 1]
            )
    return f"did you mean {near}?" if near else ""


def _sibling(path: str, names: Iterable[str]) -> str:
    """Returns the path with the nearest of these names, or with the only one that contains it."""
    parent, _, name = path.rpartition(".")
    names = list(names)
    around = [one for one in names if name and name.lower() in one.lower()]
    near = _nearest(name, names) or (around[0] if len(around) == 1 else "")
    return f"{parent}.{near}" if near else ""


@cache
def spec_paths() -> tuple[str, ...]:
    """Returns the paths of all fields of a spec outside the template."""
    return tuple(dict.fromkeys((*_paths(GPUJobSpec, "spec"), *_paths(ShortForm, "spec"))))


def _paths(kind: type, path: str) -> Iterator[str]:
    for name, (_, hint) in bounded_fields(kind).items():
        yield f"{path}.{name}"
        bare = bare_type(hint)
        if is_dataclass(bare) and not hasattr(bare, "from_json"):
            yield from _paths(cast("type", bare), f"{path}.{name}")


def _nearest(path: str, known: Iterable[str]) -> str:
    """Returns the known path that is nearest, without regard to dots and case, or ""."""
    by_letters = {_letters(one): one for one in known}
    near = difflib.get_close_matches(_letters(path), by_letters, 1, cutoff=0.75)
    return by_letters[near[0]] if near else ""


def _letters(path: str) -> str:
    """Returns the letters of a path, in lower case."""
    return re.sub(r"[^a-z]", "", path.removeprefix("spec.").lower())
