"""How fast jobs get from `kubectl apply` to their end on a real control plane, beside plain Jobs.

    python -m bench.throughput [--jobs 300] [--nodes 50] [--gpus 8] [--gangs 8] [--arrive 10]
                               [--restart] [--beside 2] [--kinds jobs,kueue,gpujobs]

Real: etcd with fsync, kube-apiserver, controller manager, scheduler, and the operator as a process
of its own with its own rights. Played: kubelets by kwok (a pod runs as soon as it is bound, and has
succeeded at once), agents by one process with the product's publisher, whose readings go to the
operator directly, or with `--readings status` by the status. Plain batch Jobs of the same pods come
first, without operator and agents, then the GPUJobs, each on a control plane that was just started:
none works with what another one left. All share this machine's cores, so figures of two machines do
not compare; the ratio of the columns does.

With `kueue` among the kinds the same batch Jobs come through a queue of Kueue, too; the first time
its manager is built, which takes minutes. It runs as a bare process with an administrator's rights,
and with what its default installation has but for things that would slow it down: it may make as
many requests as the scheduler here, manages batch Jobs alone (no webhook is called for pods), its
kinds have only the version that is stored (nothing is converted), it elects no leader, logs less,
and does not serve who waits (`VisibilityOnDemand`). The quota of its one ClusterQueue is all that
the nodes have.

Times are those of a user: from before the request until a watch shows the last pod bound, the job
succeeded. CPU is user and system time of each process, per job. `stack_cpu_milliseconds` is the sum
without what is played (kwok, agents, bench). Writes are all writing requests that the API server
counted, whoever made them. `operator_writes_per_second` are the operator's own that took effect,
each once, statuses that only tell included. `placements_per_second` are its placements that took
effect, from the first job that was submitted until the last one was bound.

With `--restart` the figures of cycles, writes and CPU are those of the killed operator and of the
next one together. `takeover_seconds` are those from the kill until `/readyz` of the next one says
that it leads with a complete cache, and so may act; `first_cycle_seconds` those from the kill until
it has ended a cycle. Both are asked for every 0.05 s. Both contain the start of a process and the
15 s for which the killed one holds the Lease.

With `--beside 2` two jobs a second come one by one in a namespace of their own, until all others
are bound. `beside_bound_seconds` are those from before the request until a watch shows the last pod
of such a job bound: whether a burst of one namespace holds up the others.
`beside_answered_seconds` are those until the API server has answered the request, and
`beside_seen_seconds` those until a watch of this program shows the job; about then an operator can
know of it. `beside_created_seconds` are those until a watch shows that pod at all; what comes after
it, the scheduler takes, and the events on their way. Their CPU and writes are in the figures,
divided by the number of the others.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from bench.machine import print_result
from bench.table import format_table
from bench.throughput.figures import (
    Outcome,
    Takeover,
    beside_of,
    difference,
    figure_rows,
    process_rows,
    ratio_columns,
    ratios,
    write_rows,
    writes_by_kind,
)
from bench.throughput.load import (
    GPUJOBS,
    KINDS,
    Kind,
    Load,
    Run,
    coming_beside,
    while_running,
)
from bench.throughput.products import PRODUCTS, Product
from bench.throughput.progress import WAIT_SECONDS_MAX, say, wait_until
from bench.throughput.stack import PLAYED, Stack, processes_between, start_cluster
from gpujob_operator.client.connection import load_configuration
from gpujob_operator.client.kube import Kube

# Connections, caches and Go's heap are there before the figures begin.
WARM_UP_JOBS = 20
# While another operator takes over, which is timed.
TAKEOVER_POLL_SECONDS = 0.05
# The limit grows by so much for each pod; one came and ended in 0.03 s on two cores.
DELETION_SECONDS = 0.5
NAMESPACES = "/api/v1/namespaces"
RESTART_HELP = (
    "kill the operator once a third is bound, and start another; prints the seconds from the kill "
    "until that one leads with a complete cache (takeover_seconds) and until it has ended a cycle "
    "(first_cycle_seconds); cycles, writes and CPU are those of both"
)

KINDS_HELP = (
    "of jobs, kueue (the same jobs through the queues of Kueue), gpujobs; they come in this order "
    "(%(default)s)"
)
BESIDE_HELP = (
    "jobs a second that come one by one in another namespace until all others are bound; prints "
    "how long each took until it was bound"
)


async def measure(
    stack: Stack,
    kube: Kube,
    kind: Kind,
    load: Load,
    namespace: str,
    *,
    prepare: Callable[[str], Awaitable[None]] | None = None,
    restart: bool = False,
    beside_per_second: float = 0.0,
) -> Outcome:
    """Runs the load in a namespace of its own, and what comes beside it in another one; `prepare`
    is done to each before any job comes.
    """
    run = Run(kube, kind, load, namespace)
    beside = None
    if beside_per_second:
        few = replace(load, per_second=beside_per_second)
        beside = Run(kube, kind, few, beside_namespace(namespace))
    for one in filter(None, (run, beside)):
        head = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one.namespace}}
        await asyncio.to_thread(stack.client.create, NAMESPACES, head)
        if prepare is not None:
            await prepare(one.namespace)
    stack.forget_peaks()
    processes, requests = stack.processes(), stack.requests()
    operator = stack.operator_series()
    takeover = Takeover() if restart else None
    also = None if takeover is None else _restart(stack, run, takeover)
    async with nullcontext() if beside is None else coming_beside(beside, run):
        problem = await while_running(run.run(say), also)
    if beside is not None and beside.bound < len(beside.times):
        problem = problem or f"beside: {beside.progress()}"
    stack.check()
    return Outcome(
        kind.name,
        run.times,
        processes_between(processes, stack.processes()),
        writes_by_kind(difference(stack.requests(), requests)),
        difference(stack.operator_series(), operator),
        problem,
        takeover,
        None if beside is None else beside_of(beside.times.values()),
    )


def beside_namespace(namespace: str) -> str:
    return f"beside-{namespace}"


async def _restart(stack: Stack, run: Run, takeover: Takeover) -> None:
    await run.until_bound(run.load.jobs // 3)
    killed_at = await asyncio.to_thread(stack.kill_operator)
    say("operator killed")
    await asyncio.to_thread(stack.spawn_operator)
    takeover.takeover_seconds = await since(killed_at, stack.operator_is_ready, stack)
    say(f"another one leads, {takeover.takeover_seconds:.1f} s after the kill")
    takeover.first_cycle_seconds = await since(killed_at, stack.has_decided, stack)


async def since(moment: float, condition: Callable[[], bool], stack: Stack) -> float:
    """Seconds from a moment until the next operator is so far."""
    await wait_until(condition, "another operator", stack, poll_seconds=TAKEOVER_POLL_SECONDS)
    return time.monotonic() - moment


async def delete_all(stack: Stack, kind: Kind, namespace: str, load: Load) -> None:
    """What is done does not weigh on what comes after."""
    path = kind.resource.path(namespace)
    body = {"propagationPolicy": "Background"}

    def asked() -> bool:
        try:
            stack.client.request("DELETE", path, body)
        except OSError:
            # It has taken too long, and the server deletes no more of them.
            return False
        return True

    limit = WAIT_SECONDS_MAX + DELETION_SECONDS * load.jobs * load.workers
    await wait_until(asked, f"the deletion of {namespace}", stack, limit_seconds=limit)
    what = f"the end of all pods of {namespace}"
    await wait_until(lambda: not stack.has_pods(namespace), what, stack, limit_seconds=limit)


async def run_kind(
    stack: Stack, kube: Kube, kind: Kind, product: Product, options: argparse.Namespace
) -> Outcome:
    await product.start()
    warm_up = Load(WARM_UP_JOBS, options.gangs, limit_seconds=options.limit_seconds)
    first = f"warm-up-{kind.name}"
    await _succeed(measure(stack, kube, kind, warm_up, first, prepare=product.prepare))
    await delete_all(stack, kind, first, warm_up)
    load = Load(options.jobs, options.gangs, options.arrive, options.limit_seconds)
    say(f"{kind.name}: {load.jobs} of {load.workers} pods")
    outcome = await measure(
        *(stack, kube, kind, load, f"measured-{kind.name}"),
        prepare=product.prepare,
        restart=options.restart and kind is GPUJOBS,
        beside_per_second=options.beside,
    )
    say(f"{kind.name}: {outcome.problem or 'done'}")
    return outcome


async def _succeed(outcome: Awaitable[Outcome]) -> None:
    done = await outcome
    if not done.complete:
        raise RuntimeError(f"warm-up of {done.kind}: {done.problem}")


async def run_alone(stack: Stack, kind: Kind, options: argparse.Namespace) -> Outcome:
    kube = Kube(await load_configuration(str(stack.cluster.kubeconfig)))
    try:
        # What is missing is built before anything runs.
        product = await asyncio.to_thread(PRODUCTS[kind.name], stack)
        await asyncio.to_thread(stack.start_nodes)
        await wait_until(lambda: stack.ready_nodes() >= stack.nodes, "ready nodes", stack)
        say(f"{kind.name}: {stack.nodes} nodes ready")
        return await run_kind(stack, kube, kind, product, options)
    finally:
        await kube.close()


def run_all(options: argparse.Namespace) -> list[Outcome]:
    """Each kind on a control plane of its own: none works with what another one left."""
    more, direct = tuple(options.operator_arguments.split()), options.readings == "direct"
    outcomes: list[Outcome] = []
    for name in options.kinds:
        with start_cluster(say) as cluster:
            stack = Stack(cluster, options.nodes, options.gpus, more, direct)
            outcomes.append(asyncio.run(run_alone(stack, KINDS[name], options)))
    return outcomes


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    text = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m bench.throughput", description=text)
    add = parser.add_argument
    add("--jobs", type=positive, default=300, help="jobs of each kind (%(default)s)")
    add("--nodes", type=positive, default=50, help="played nodes (%(default)s)")
    add("--gpus", type=positive, default=8, help="GPUs of a node (%(default)s)")
    add("--gangs", type=positive, default=1, help="workers of a job (%(default)s)")
    add("--arrive", type=rate, default=0.0, help="jobs a second, as 10 or 10/s; default: at once")
    add("--beside", type=rate, default=0.0, help=BESIDE_HELP)
    add("--restart", action="store_true", help=RESTART_HELP)
    add("--kinds", type=_kinds, default="jobs,gpujobs", help=KINDS_HELP)
    add("--limit-seconds", type=float, default=900.0, help="for one kind (%(default)s)")
    add("--readings", choices=("direct", "status"), default="direct", help="%(default)s")
    add("--operator-arguments", default="", help="more arguments of the operator")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {text}")
    return number


def rate(text: str) -> float:
    number = float(text.removesuffix("/s"))
    if number <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0; got {text}")
    return number


def _kinds(text: str) -> list[str]:
    names = text.split(",")
    if unknown := sorted(set(names) - set(KINDS)):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; of {', '.join(KINDS)}")
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"each at most once; got {text}")
    return names


def print_outcomes(outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    rows = [outcome.row(PLAYED) for outcome in outcomes]
    # The product first, as the ratio reads.
    rows.sort(key=lambda row: row["kind"] != GPUJOBS.name)
    kinds = [str(row["kind"]) for row in rows]
    columns = ["figure", *kinds, *ratio_columns(kinds)]
    print("End to end; kubelets are played by kwok, agents by one process")
    print(format_table(figure_rows(rows), columns))
    print("\nCPU a job in milliseconds, peak memory in MiB, by process")
    memory = [f"{kind}_mib" for kind in kinds]
    print(format_table(process_rows(rows), [*columns, *memory]))
    print("\nWrites a job, by kind")
    print(format_table(write_rows(rows), columns))
    for row in rows:
        if not row["complete"]:
            print(f"NOT COMPLETE: {row['kind']}: {row['problem']}")
    print_result(rows, options=vars(options), ratios=ratios(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    outcomes = run_all(options)
    print_outcomes(outcomes, options)
    return 0 if all(outcome.complete for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
