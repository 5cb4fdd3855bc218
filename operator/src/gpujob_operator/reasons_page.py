"""Writes docs/reference/reasons.md to standard output: `python -m gpujob_operator.reasons_page`."""

import sys
from collections.abc import Iterator, Mapping

from gpujob_operator.decide.model.conditions import RUNNING
from gpujob_operator.decide.model.reasons import (
    CONDITIONS,
    EVENTS,
    SERVICE_CONDITIONS,
    SERVICE_EVENTS,
)

_HEAD = """# Reasons

Every reason of the conditions and events of GPUJobs and GPUServices, for programs; messages, with
the numbers, are for people. [Conditions](conditions.md) says what each condition means. This page
is generated from the operator's tables (`make generate`).
"""


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    for kind, meanings in CONDITIONS.items():
        yield f"## Condition {kind}\n"
        yield from _table(meanings)
        yield ""
        if kind == RUNNING:
            yield "While pods wait, it may also be Kubernetes' own, such as `ImagePullBackOff`.\n"
    yield "## Events\n"
    yield from _table(EVENTS)
    for kind, meanings in SERVICE_CONDITIONS.items():
        yield f"\n## GPUService: condition {kind}\n"
        yield from _table(meanings)
    yield "\n## GPUService: events\n"
    yield from _table(SERVICE_EVENTS)


def _table(meanings: Mapping[str, str]) -> Iterator[str]:
    yield "| reason | meaning |"
    yield "|---|---|"
    for name, text in meanings.items():
        yield f"| `{name}` | {text} |"


if __name__ == "__main__":
    sys.stdout.write(page())
