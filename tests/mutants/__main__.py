"""`python -m tests.mutants`: breaks one line of the product at a time and runs the nearest tests.

Each mutant is applied to a copy of the tree. A mutant is caught where a test fails. Prints a table
and ends with one line of JSON. Ends with 1 where a mutant was not caught.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.harness.repository import ROOT
from tests.mutants.blame import BLAME
from tests.mutants.decisions import DECISIONS
from tests.mutants.handlers import HANDLERS
from tests.mutants.leases import LEASES
from tests.mutants.mutant import Mutant
from tests.mutants.restores import RESTORES
from tests.mutants.sharded import SHARDED
from tests.mutants.shell import ACTS, OBSERVES
from tests.mutants.slots import SLOTS
from tests.mutants.statuses import STATUSES
from tests.mutants.stores import STORES
from tests.mutants.tree import Tree, Verdict
from tests.mutants.waits import WAITS
from tests.mutants.worker import COMMITS
from tests.mutants.zero import ZERO

MUTANTS: tuple[Mutant, ...] = (
    *DECISIONS,
    *BLAME,
    *ACTS,
    *SLOTS,
    *STATUSES,
    *STORES,
    *OBSERVES,
    *RESTORES,
    *LEASES,
    *HANDLERS,
    *COMMITS,
    *SHARDED,
    *WAITS,
    *ZERO,
)


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    chosen = [one for one in MUTANTS if options.area in ("", one.area) and options.name in one.name]
    if not chosen:
        print(f"no mutant of area {options.area!r} has {options.name!r} in its name")
        return 2
    if options.list:
        for mutant in chosen:
            print(f"{mutant.area:<9} {mutant.name:<60} {mutant.path}")
        return 0
    started = time.monotonic()
    with Tree.copied(ROOT) as tree:
        if (failed := tree.healthy(chosen)) is not None:
            print(f"without a mutant already:\n{failed}")
            return 2
        verdicts = judge(tree, chosen)
    uncaught = [
        one.name for one, verdict in zip(chosen, verdicts, strict=True) if not verdict.caught
    ]
    print(
        json.dumps(
            {
                "mutants": len(chosen),
                "caught": len(chosen) - len(uncaught),
                "uncaught": uncaught,
                "areas": Counter(one.area for one in chosen),
                "seconds": round(time.monotonic() - started),
            }
        )
    )
    return 1 if uncaught else 0


def judge(tree: Tree, mutants: Sequence[Mutant]) -> list[Verdict]:
    """One after the other, each said as soon as it is known."""
    verdicts: list[Verdict] = []
    for mutant in mutants:
        verdict = tree.judge(mutant)
        verdicts.append(verdict)
        said = "caught" if verdict.caught else "NOT CAUGHT"
        print(
            f"{said:<10} {mutant.area:<9} {mutant.name:<60} {verdict.seconds:5.1f} s  {verdict.by}",
            flush=True,
        )
    return verdicts


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--area", default="", help="of one package only: decide, act, observe ...")
    parser.add_argument("--name", default="", help="only those with this text in their name")
    parser.add_argument("--list", action="store_true", help="run nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
