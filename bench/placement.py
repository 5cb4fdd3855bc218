"""Placement on the openb traces: allocation reached as jobs arrive, beside the published policies.

    python -m bench.placement --data DIR [--traces default,cpu100] [--seeds 42-51]

DIR holds `openb_node_list_gpu_node.csv.gz` and, per trace, `openb_pod_list_<trace>.csv.gz` and
`<trace>.npz` (orders of arrival and tie-break ranks per seed); `published_allo.csv.gz`, where it is
there, gives the published rows. Everything is simulated: pods arrive one at a time and never end;
one that fits nowhere is dropped. A node's place in the tie-break order is the trace's. Our row is
`gpujob_operator.decide.packing.select.choose` itself, with the mix of the whole pod list (as FGD is
given its typical pods), without any knowledge of the order of arrivals.

`gpujob random ties` and `FGD random ties` are these rules with ties drawn by lot; nobody has
published the latter. The two queues are another protocol: a pod that fits nowhere waits and is
tried again. In `gpujob look-ahead` running pods may move for it, in `gpujob look-ahead with
exchange` they may also go back to the queue for one that asks for more of the same GPUs;
`bench/openb/look_ahead.py` has their bounds. They are no gain over FGD.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.machine import print_result
from bench.openb import peers
from bench.openb.cluster import Policy, Run, simulate
from bench.openb.gradient import FragmentationGradientDescent
from bench.openb.look_ahead import Effort, LookAhead, simulate_queue
from bench.openb.product import Product, RandomTies
from bench.openb.published import read_published
from bench.openb.trace import Nodes, Trace, read_trace, trace_names
from bench.table import format_table

OURS = "gpujob"
RANDOM_TIES = "gpujob random ties"
LOOK_AHEAD = "gpujob look-ahead"
EXCHANGE = "gpujob look-ahead with exchange"
REPORTED_PERCENT = (100, 130)
Make = Callable[[Trace, Nodes, int], Policy]
Curves = dict[tuple[str, str, str], list[NDArray[np.float64]]]
Efforts = dict[tuple[str, str], list[tuple[Effort, int]]]


def _ranked(scorer: Callable[[Trace], peers.Scorer]) -> Make:
    return lambda trace, nodes, seed: peers.Ranked(trace.classes, scorer(trace))


POLICIES: dict[str, Make] = {
    "Random": lambda trace, nodes, seed: peers.Random(trace.classes, seed),
    "DotProd": _ranked(lambda trace: peers.DotProduct(trace.classes)),
    "GpuClustering": _ranked(lambda trace: peers.GpuClustering(trace.classes)),
    "GpuPacking": _ranked(lambda trace: peers.GpuPacking(trace.classes)),
    "BestFit": _ranked(lambda trace: peers.BestFit(trace.classes)),
    "FGD": lambda trace, nodes, seed: peers.Ranked(
        trace.classes, FragmentationGradientDescent(trace, nodes.models)
    ),
    "FGD random ties": lambda trace, nodes, seed: peers.Ranked(
        trace.classes, FragmentationGradientDescent(trace, nodes.models), ties_seed=seed
    ),
    OURS: lambda trace, nodes, seed: Product(trace, nodes),
    RANDOM_TIES: lambda trace, nodes, seed: RandomTies(trace, nodes, seed),
}
# Whether running pods may go back to the queue; another protocol than that of the policies.
QUEUES: dict[str, bool] = {LOOK_AHEAD: False, EXCHANGE: True}


@dataclass(slots=True)
class Findings:
    """Curves of every trace, policy and source, and what the queues did for theirs."""

    curves: Curves = field(default_factory=dict[tuple[str, str, str], list[NDArray[np.float64]]])
    efforts: Efforts = field(default_factory=dict[tuple[str, str], list[tuple[Effort, int]]])


def run(
    directory: Path, names: Sequence[str], seeds: Sequence[int], policies: Sequence[str]
) -> Findings:
    """Runs all; progress goes to stderr."""
    findings = Findings()
    curves = findings.curves
    published = read_published(directory)
    for name in names:
        trace = read_trace(directory, name)
        for policy in policies:
            source = "ours" if policy.split()[0] == OURS else "reproduced"
            begin = time.monotonic()
            found = [_run_one(trace, policy, seed, findings) for seed in seeds]
            curves[name, policy, source] = [one.allocation_percent for one in found]
            theirs = [published[k] for seed in seeds if (k := (name, policy, seed)) in published]
            if theirs:
                curves[name, policy, "published"] = theirs
            seconds = time.monotonic() - begin
            print(f"{name} {policy}: {len(seeds)} runs in {seconds:.1f} s", file=sys.stderr)
    return findings


def _run_one(trace: Trace, policy: str, seed: int, findings: Findings) -> Run:
    arrivals = trace.arrivals(seed)
    if policy in QUEUES:
        queue = LookAhead(trace, arrivals.nodes, exchange=QUEUES[policy])
        found = simulate_queue(arrivals, queue)
        findings.efforts.setdefault((trace.name, policy), []).append((queue.effort, found.failed))
        return found
    make = POLICIES[policy]
    return simulate(arrivals, trace.classes, make(trace, arrivals.nodes, seed))


def efforts_of(efforts: Efforts) -> list[dict[str, Any]]:
    """Means over the seeds of what a queue did, in pods."""
    rows: list[dict[str, Any]] = []
    for (trace, policy), found in efforts.items():
        done = [effort for effort, _ in found]
        rows.append(
            {
                "trace": trace,
                "policy": policy,
                "started_by_moves": float(np.mean([one.starts for one in done])),
                "moved": float(np.mean([one.moves for one in done])),
                "sent_back": float(np.mean([one.returned for one in done])),
                "waiting_at_the_end": float(np.mean([waiting for _, waiting in found])),
            }
        )
    return rows


def results_of(curves: Curves) -> list[dict[str, Any]]:
    """One row per trace, policy, source and reported arrived percent; sd is the sample's."""
    rows: list[dict[str, Any]] = []
    for (trace, policy, source), found in curves.items():
        for percent in REPORTED_PERCENT:
            values = np.array([curve[percent] for curve in found])
            deviation = float(values.std(ddof=1)) if len(values) > 1 else None
            rows.append(
                {
                    "trace": trace,
                    "policy": policy,
                    "source": source,
                    "arrived_percent": percent,
                    "allocation_percent_mean": round(float(values.mean()), 3),
                    "allocation_percent_sd": None if deviation is None else round(deviation, 3),
                    "seeds": len(values),
                }
            )
    return rows


def lines_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table for people: one line per trace, policy and source, both percents side by side."""
    lines: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["trace"], row["policy"], row["source"])
        line = lines.setdefault(
            key, {"trace": key[0], "policy": key[1], "source": key[2], "seeds": row["seeds"]}
        )
        line[f"at {row['arrived_percent']} %"] = row["allocation_percent_mean"]
        line[f"sd at {row['arrived_percent']} %"] = row["allocation_percent_sd"]
    return list(lines.values())


def gains_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours less FGD as published (as reproduced where nothing is published), in points. Only the
    row under the published protocol counts: not the queues, nor ties by lot."""
    means: dict[tuple[str, str, str, int], float] = {
        (row["trace"], row["policy"], row["source"], row["arrived_percent"]): row[
            "allocation_percent_mean"
        ]
        for row in rows
    }
    gains: list[dict[str, Any]] = []
    for trace in dict.fromkeys(row["trace"] for row in rows):
        gain: dict[str, Any] = {"trace": trace}
        for percent in REPORTED_PERCENT:
            ours = means.get((trace, OURS, "ours", percent))
            published = means.get((trace, "FGD", "published", percent))
            fgd = (
                published
                if published is not None
                else means.get((trace, "FGD", "reproduced", percent))
            )
            if ours is not None and fgd is not None:
                gain[f"at {percent} %"] = round(ours - fgd, 3)
            gain["against"] = "published" if published is not None else "reproduced"
        gains.append(gain)
    return gains


def parse_seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds.extend(range(int(first), int(last or first) + 1))
    return seeds


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.placement", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--traces", default="", help="comma list; default: all of the folder")
    parser.add_argument("--seeds", type=parse_seeds, default=parse_seeds("42-51"))
    parser.add_argument("--policies", default=",".join([*POLICIES, *QUEUES]), help="comma list")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    asked = _arguments(arguments)
    names = asked.traces.split(",") if asked.traces else list(trace_names(asked.data))
    findings = run(asked.data, names, asked.seeds, asked.policies.split(","))
    rows, efforts = results_of(findings.curves), efforts_of(findings.efforts)
    percents = [f"{what} {p} %" for p in REPORTED_PERCENT for what in ("at", "sd at")]
    print("GPU allocation, percent of capacity, at 100 % and 130 % of capacity arrived (simulated)")
    print(format_table(lines_of(rows), ["trace", "policy", "source", "seeds", *percents]))
    print("\nOurs less FGD, points")
    gains = gains_of(rows)
    print(format_table(gains, ["trace", "against", *(f"at {p} %" for p in REPORTED_PERCENT)]))
    if efforts:
        print("\nWhat the queues did for their rows, pods, mean of the seeds")
        print(format_table(efforts, list(efforts[0])))
    print_result(rows, benchmark="placement", gain_points=gains, queue_effort=efforts)


if __name__ == "__main__":
    main()
