"""The arguments and options of kubectl gpujob's commands, with their help."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Output(Enum):
    TEXT = "text"
    JSON = "json"


Name = Annotated[str, typer.Argument(help="Name of the GPUJob.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the context's.")
]
Context = Annotated[str | None, typer.Option("--context", help="Context in the kubeconfig.")]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", help="Kubeconfig file. Default: $KUBECONFIG, else ~/.kube/config."
    ),
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Output format: text or json.")
]
Places = Annotated[
    bool,
    typer.Option(
        "--places", help="Show the placement score, runners-up, and why other nodes were rejected."
    ),
]
JobNames = Annotated[
    list[str] | None, typer.Argument(metavar="[JOB]...", help="Names of the jobs to show.")
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--filename", "-f", help="GPUJobs to add, GPUQueues to set; - is standard input."),
]
AddNodes = Annotated[
    list[str] | None,
    typer.Option("--add-nodes", metavar="NODE=COUNT", help="Add COUNT idle nodes like NODE."),
]
WithoutNodes = Annotated[
    list[str] | None,
    typer.Option("--without-node", metavar="NODE", help="Remove NODE now."),
]
Quotas = Annotated[
    list[str] | None,
    typer.Option(
        "--quota",
        metavar="QUEUE.FIELD=VALUE",
        help="Set a quota. FIELD: gpus, gpuMemory (both nominal), borrowingLimit.gpus, "
        "borrowingLimit.gpuMemory or weight.",
    ),
]
Source = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="DUMP", help="Read a cycle that the operator dumped, not the cluster."
    ),
]
ConfigurationFile = Annotated[
    Path | None,
    typer.Option(
        "--configuration",
        help="The operator's configuration file. Default: the dump's, or the cluster's.",
    ),
]
Horizon = Annotated[str, typer.Option("--horizon", help="How far to simulate: 90s, 30m, 24h, 7d.")]
