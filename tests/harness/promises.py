"""The promises, and docs/promises.md from the tests that are marked with them.

A test is marked by `@pytest.mark.promise("I1")`, a whole file by its `pytestmark`. `make generate`
writes the page: `python -m tests.harness.promises`.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from tests.harness.repository import relative, tracked

PAGE = "docs/promises.md"
_MARK = "pytest.mark.promise"


@dataclass(frozen=True, slots=True)
class Promise:
    name: str
    holds: str
    not_shown: str = ""


PROMISES = {
    "I1": Promise(
        "capacity",
        "no write of the operator brings a GPU above its memory",
        "on a GPU; an agent that lies about the memory of its own node's GPUs harms the jobs there",
    ),
    "I2": Promise(
        "exclusive",
        "a job that asked for the whole GPU shares it with no other",
        "under more faults on a real API server",
    ),
    "I3": Promise(
        "one attempt",
        "a job has at most one live attempt, and attempt numbers only grow",
        "a pod that arrives late while no operator answers for 30 s, or whose program does not run "
        "under the worker package: only the fence of the checkpoint folder stops it; restored data "
        "on a real API server",
    ),
    "I4": Promise(
        "nothing lost",
        "each job is finished, running, or pending with a reason",
        "under thousands of seeded fault schedules on a real API server",
    ),
    "I5": Promise(
        "no rerun",
        "a finished job gets no pod",
        "a restart with many finished jobs; restored data on a real API server; a worker that is "
        "done and whose pod is removed while no operator watches: it runs again from its last "
        "checkpoint",
    ),
    "I6": Promise(
        "progress",
        "the durable step never decreases; a resumed run continues as if never stopped, unless the "
        "job was known beforehand to start from the beginning",
        "on a GPU; checkpoints of several workers on several nodes",
    ),
    "I7": Promise(
        "no orphans",
        "no pod, claim or Lease remains without a live owner",
        "claims and Leases under seeded faults; restored data on a real API server",
    ),
    "I8": Promise(
        "convergence",
        "after the last fault conditions settle, and then nothing is written",
        "counted writes on a real API server after the last fault",
    ),
    "I9": Promise(
        "same end",
        "crashes and the order of events do not change how a job ends",
        "edits in random order against a reference run; restored data on a real API server",
    ),
    "I10": Promise(
        "bad input",
        "bad input is refused by name and affects no other job",
        "bad input among seeded faults: the specs of the simulation are all valid",
    ),
    "I11": Promise(
        "order",
        "no job overtakes another except by documented backfill; waiting is bounded",
        "a bound on waiting over long traces; queues that change under seeded faults",
    ),
    "I12": Promise(
        "least privilege",
        'no more rights than needed; pods pass Pod Security "restricted"',
        "the agents' rights under faults",
    ),
    "I13": Promise(
        "grace",
        "a stop is SIGTERM, the grace period, and a checkpoint within it",
        "on a real kubelet: a spot node that its cloud takes away",
    ),
    "I14": Promise(
        "stale readings",
        "stale readings stop no job and place no job",
        "an agent that lies about its own node within what a GPU may have",
    ),
    "I15": Promise(
        "isolation",
        "failures of one namespace do not affect another",
        "a fair share of the report port if the network changes the addresses of pods; an agent "
        "that attracts jobs with GPUs that do not exist: each job loses the time until its pod is "
        "known not to start",
    ),
    "I16": Promise(
        "learning",
        "a setting that changes the loss is taken back",
        "on a GPU; whole trainings of large models",
    ),
    "I17": Promise(
        "requests",
        "a replica that is removed in order answers what it accepted; no update and no smaller "
        "number leaves fewer ready replicas than the minimum, and the last one stops without "
        "requests only",
        "on a real kubelet under faults",
    ),
}

_HEAD = f"""# Promises

What holds at every moment and under every fault. Each promise has tests that fail without it.
This page is generated (`make generate`) from the marker `{_MARK}` on these tests.
How faults are played and observed: [fault tests](design/fault-tests.md).
"""

_LIMITS = """## Not promised

* **Exactly-once execution.** Kubernetes does not give it. Removing a Node object, or deleting a
  pod by force, tells the operator that the worker is gone. If the worker still runs, two attempts
  are alive until the checkpoint fence stops the older one. The same holds if a restore of the API
  server's data forgets a pod whose node is cut off.
* **Walls between jobs on one GPU** without MPS or MIG. See the [threat model](threat-model.md).
"""


@dataclass(frozen=True, slots=True)
class MarkedTest:
    """One test that shows a promise; `name` is empty if the whole file does."""

    file: str
    name: str


def page() -> str:
    return "\n".join(_lines(marked(tracked("tests/*.py")))) + "\n"


def marked(files: Iterable[Path]) -> dict[str, list[MarkedTest]]:
    """The tests of each promise, in the order of their files."""
    found: dict[str, list[MarkedTest]] = defaultdict(list)
    for path in files:
        source = path.read_text(encoding="utf-8")
        if _MARK in source and path.name.startswith("test_"):
            for promise, test in _marks(ast.parse(source)):
                found[promise].append(MarkedTest(relative(path), test))
    return found


def _marks(module: ast.Module) -> Iterator[tuple[str, str]]:
    tests = [node for node in ast.walk(module) if _is_test(node)]
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark" and tests:
            yield from ((promise, "") for promise in _promises(node.value))
    for test in tests:
        for decorator in test.decorator_list:
            yield from ((promise, test.name) for promise in _promises(decorator))


def _is_test(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return is_function and node.name.startswith("test_")


def _promises(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == _MARK:
            yield from (str(ast.literal_eval(argument)) for argument in node.args)


def _lines(found: dict[str, list[MarkedTest]]) -> Iterator[str]:
    yield _HEAD
    yield "| promise | what holds | tests | not shown yet |"
    yield "|---|---|---:|---|"
    for number, promise in PROMISES.items():
        anchor = re.sub(r"[^\w-]", "", f"{number}-{promise.name}".lower().replace(" ", "-"))
        count = f"[{len(found[number])}](#{anchor})"
        yield f"| {number} {promise.name} | {promise.holds} | {count} | {promise.not_shown} |"
    yield f"\n{_LIMITS}\n## Tests\n"
    yield "A file without names counts as one: all of its tests show the promise."
    for number, promise in PROMISES.items():
        yield f"\n### {number} {promise.name}\n"
        yield from _by_file(found[number])


def _by_file(tests: Iterable[MarkedTest]) -> Iterator[str]:
    names: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        names[test.file].append(test.name)
    for file, several in sorted(names.items()):
        shown = ", ".join(f"`{name}`" for name in several if name)
        yield f"* `{file}`" + (f": {shown}" if shown else "")


if __name__ == "__main__":
    sys.stdout.write(page())
