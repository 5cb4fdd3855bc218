"""The command line of kubectl gpujob. Exit codes: 0 answered, 1 could not answer, 2 wrong usage."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import API_VERSION
from kubectl_gpujob import report, screen, why
from kubectl_gpujob.cluster import Cluster, Target, UserError, connect

Connect = Callable[[Target], Cluster]


class Output(Enum):
    TEXT = "text"
    JSON = "json"


Name = Annotated[str, typer.Argument(help="Name of the GPUJob.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Default: the context's namespace.")
]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Default: $KUBECONFIG, else ~/.kube/config.")
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text or json.")]


def build(connect: Connect, now: Callable[[], datetime]) -> typer.Typer:
    """The commands over a cluster and a clock, which tests replace."""
    app = typer.Typer(
        name="kubectl gpujob",
        help="Says in numbers why a GPUJob waits and what was gained for it.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.command("why")
    def why_command(
        name: Name,
        namespace: Namespace = None,
        context: Context = None,
        kubeconfig: Kubeconfig = None,
        output: OutputOption = Output.TEXT,
    ) -> None:
        """Why the job waits, or why it ended."""
        cluster = connect(Target(kubeconfig, context, namespace))
        job = cluster.job(name)
        place = why.position(job, _queue(cluster))
        if output is Output.JSON:
            screen.print_json(why.as_json(job, place))
        else:
            screen.print_rows(why.headline(job, now()), why.rows(job, place, now()))

    @app.command("report")
    def report_command(
        name: Name,
        namespace: Namespace = None,
        context: Context = None,
        kubeconfig: Kubeconfig = None,
        output: OutputOption = Output.TEXT,
    ) -> None:
        """Step time, memory, settings, checkpoint and attempts: before and after."""
        job = connect(Target(kubeconfig, context, namespace)).job(name)
        if output is Output.JSON:
            screen.print_json(report.as_json(job))
        else:
            name = f"{job.metadata.namespace}/{job.metadata.name}"
            screen.print_rows(name, report.rows(job, now()))
            screen.print_comparison(report.comparison(job))

    @app.command("list")
    def list_command(
        all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A")] = False,
        namespace: Namespace = None,
        context: Context = None,
        kubeconfig: Kubeconfig = None,
    ) -> None:
        """All jobs: where they run, how fast, at what cost."""
        cluster = connect(Target(kubeconfig, context, namespace))
        jobs = cluster.jobs(all_namespaces=all_namespaces)
        if not jobs:
            where = "in any namespace" if all_namespaces else f"in namespace {cluster.namespace}"
            print(f"no gpujobs {where}", file=sys.stderr)
            return
        screen.print_jobs(jobs, now(), namespaces=all_namespaces)

    @app.command("version")
    def version_command() -> None:
        """The version of this plugin and of the API that it reads."""
        print(f"kubectl-gpujob {installed_version('gpujob')} ({API_VERSION})")

    return app


def main() -> None:
    try:
        build(connect, lambda: datetime.now(UTC))()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def _queue(cluster: Cluster) -> list[GPUJob]:
    """Everybody in the queue; who may not see all namespaces counts in their own."""
    try:
        return list(cluster.jobs(all_namespaces=True))
    except UserError:
        return list(cluster.jobs(all_namespaces=False))


if __name__ == "__main__":
    main()
