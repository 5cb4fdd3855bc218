"""The command line of kubectl gpujob. Exit codes: 0 answered, 1 could not answer, 2 wrong usage."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import to_manifest
from gpujob_api.meta import API_VERSION
from gpujob_api.version import installed_version
from gpujob_api.visible import visible
from kubectl_gpujob import report, screen, why
from kubectl_gpujob.arguments import (
    AddNodes,
    ConfigurationFile,
    Context,
    Files,
    Horizon,
    JobNames,
    Kubeconfig,
    Name,
    Namespace,
    Output,
    OutputOption,
    Places,
    Quotas,
    Source,
    WithoutNodes,
)
from kubectl_gpujob.cluster import Cluster, Target, connect
from kubectl_gpujob.errors import UserError

Connect = Callable[[Target], Cluster]


def build(connect: Connect, now: Callable[[], datetime]) -> typer.Typer:
    """Returns the commands for a cluster and a clock, which tests replace."""
    app = typer.Typer(
        name="kubectl gpujob",
        help="Explain, report on and simulate GPUJobs.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        version: Annotated[
            bool,
            typer.Option("--version", help="Show the version.", is_eager=True, callback=_version),
        ] = False,
    ) -> None:
        del version

    app.command("why")(_why_command(connect, now))

    @app.command("report")
    def report_command(
        name: Name,
        namespace: Namespace = None,
        context: Context = None,
        kubeconfig: Kubeconfig = None,
        output: OutputOption = Output.TEXT,
    ) -> None:
        """Show step time, memory, settings, checkpoint and attempts of a job."""
        job = connect(Target(kubeconfig, context, namespace)).job(name)
        if output is Output.JSON:
            screen.print_json(report.as_json(job))
        else:
            name = job.metadata.key
            screen.print_rows(name, report.rows(job, now()))
            screen.print_comparison(report.comparison(job))

    app.command("simulate")(_simulate_command(connect))

    @app.command("list")
    def list_command(
        all_namespaces: Annotated[
            bool, typer.Option("--all-namespaces", "-A", help="List the jobs of all namespaces.")
        ] = False,
        namespace: Namespace = None,
        context: Context = None,
        kubeconfig: Kubeconfig = None,
        output: OutputOption = Output.TEXT,
    ) -> None:
        """List jobs with progress, placement, speed and cost, as far as the terminal is wide."""
        cluster = connect(Target(kubeconfig, context, namespace))
        jobs = cluster.jobs(all_namespaces=all_namespaces)
        if output is Output.JSON:
            screen.print_json([to_manifest(job) for job in jobs])
            return
        if not jobs:
            where = "in any namespace" if all_namespaces else f"in namespace {cluster.namespace}"
            print(f"no gpujobs {where}", file=sys.stderr)
            return
        screen.print_jobs(jobs, now(), namespaces=all_namespaces)

    @app.command("version")
    def version_command() -> None:
        """Show the version of this plugin and of the API that it reads."""
        _print_version()

    return app


def _version(asked: bool) -> None:
    if asked:
        _print_version()
        raise typer.Exit


def _print_version() -> None:
    print(f"kubectl-gpujob {installed_version()} ({API_VERSION})")


def _why_command(connect: Connect, now: Callable[[], datetime]) -> Callable[..., None]:
    def why_command(
        name: Name,
        namespace: Namespace = None,
        context: Context = None,
        kubeconfig: Kubeconfig = None,
        output: OutputOption = Output.TEXT,
        places: Places = False,
        source: Source = None,
        configuration: ConfigurationFile = None,
    ) -> None:
        """Explain why a job is pending or how it ended; with --places, why it is placed there."""
        if places or source is not None:
            target = Target(kubeconfig, context, namespace)
            _places(connect, target, name, source, configuration, output)
            return
        if configuration is not None:
            raise typer.BadParameter(
                "only valid with --places or --from", param_hint="--configuration"
            )
        cluster = connect(Target(kubeconfig, context, namespace))
        job = cluster.job(name)
        place = why.position(job, _queue(cluster))
        if output is Output.JSON:
            screen.print_json(why.as_json(job, place))
        else:
            screen.print_rows(why.headline(job, now()), why.rows(job, place, now()))

    return why_command


def _places(
    connect: Connect,
    target: Target,
    name: str,
    source: Path | None,
    configuration: Path | None,
    output: Output,
) -> None:
    """Shows the job's placement next to others: its score, the runners-up, and what other nodes
    lack.
    """
    from kubectl_gpujob import places
    from kubectl_gpujob.observations import observation_from_cluster, observation_from_dump

    if source is None:
        cluster = connect(target)
        observation = observation_from_cluster(cluster, configuration)
        found = places.found(observation, f"{cluster.namespace}/{name}")
    else:
        observation = observation_from_dump(source, configuration)
        wanted = f"{target.namespace}/{name}" if target.namespace else name
        found = places.found(observation, wanted)
    if output is Output.JSON:
        screen.print_json(places.as_json(found))
    else:
        screen.print_rows(places.headline(found, observation), places.rows(found))


def _simulate_command(connect: Connect) -> Callable[..., None]:
    """Returns the command of simulations. Its modules load numpy and the decisions on demand."""

    def simulate_command(
        jobs: JobNames = None,
        files: Files = None,
        add_nodes: AddNodes = None,
        without_nodes: WithoutNodes = None,
        quotas: Quotas = None,
        source: Source = None,
        configuration: ConfigurationFile = None,
        horizon: Horizon = "24h",
        namespace: Namespace = None,
        context: Context = None,
        kubeconfig: Kubeconfig = None,
        output: OutputOption = Output.TEXT,
    ) -> None:
        """Simulate scheduling with extra jobs, nodes or quota. Read-only.

        Shows where and when jobs would start and which jobs they would preempt,
        or why they stay pending, and what changes for other jobs. Without files
        and names, it shows all pending jobs. Running jobs continue at their
        measured pace; nothing is measured, and no job fails. It lists nodes, pods
        of all namespaces and the kinds of gpujob.dev, or reads a dump.
        """
        from kubectl_gpujob import question, simulate
        from kubectl_gpujob.observations import observation_from_cluster, observation_from_dump

        target = Target(kubeconfig, context, namespace)
        limits = simulate.Limits(question.horizon_seconds(horizon))
        if source is None:
            cluster = connect(target)
            here, observation = cluster.namespace, observation_from_cluster(cluster, configuration)
            refusal = cluster.refusal
        else:
            here, observation = namespace or "default", observation_from_dump(source, configuration)
            refusal = None
        changes = question.changes_of(
            files or [],
            namespace=here,
            queues=observation.snapshot.queues,
            add_nodes=add_nodes or [],
            without_nodes=without_nodes or [],
            quotas=quotas or [],
            refusal=refusal,
        )
        before = observation.snapshot
        jobs_then = (*before.jobs, *changes.jobs)
        question.refuse_unused_queues(quotas or [], before.queues, jobs_then)
        found = simulate.answer(observation, changes, jobs or [], here, limits)
        if output is Output.JSON:
            screen.print_json(simulate.as_json(found))
        else:
            screen.print_simulation(found)

    return simulate_command


def main() -> None:
    try:
        build(connect, lambda: datetime.now(UTC))()
    except UserError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        sys.exit(1)


def _queue(cluster: Cluster) -> list[GPUJob]:
    """Returns all jobs, or only those of the namespace if other namespaces may not be listed."""
    try:
        return list(cluster.jobs(all_namespaces=True))
    except UserError:
        return list(cluster.jobs(all_namespaces=False))


if __name__ == "__main__":
    main()
