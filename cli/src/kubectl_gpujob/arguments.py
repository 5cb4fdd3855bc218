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
    str | None, typer.Option("--namespace", "-n", help="Default: the context's namespace.")
]
Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Default: $KUBECONFIG, else ~/.kube/config.")
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text or json.")]
Places = Annotated[
    bool,
    typer.Option(
        "--places", help="The place's cost, the next best ones, and what the other nodes lack."
    ),
]
JobNames = Annotated[
    list[str] | None, typer.Argument(metavar="[JOB]...", help="Jobs to tell about.")
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--filename", "-f", help="GPUJobs to add, GPUQueues to set; - is standard input."),
]
AddNodes = Annotated[
    list[str] | None,
    typer.Option("--add-nodes", metavar="NODE=COUNT", help="COUNT more idle nodes like NODE."),
]
WithoutNodes = Annotated[
    list[str] | None,
    typer.Option("--without-node", metavar="NODE", help="As if NODE went away now."),
]
Quotas = Annotated[
    list[str] | None,
    typer.Option(
        "--quota",
        metavar="QUEUE.FIELD=VALUE",
        help="FIELD: gpus, gpuMemory (both nominal), borrowingLimit.gpus, "
        "borrowingLimit.gpuMemory or weight.",
    ),
]
Source = Annotated[
    Path | None,
    typer.Option("--from", metavar="DUMP", help="A cycle dumped by the operator, not the cluster."),
]
ConfigurationFile = Annotated[
    Path | None,
    typer.Option(
        "--configuration", help="The operator's file. Default: the dump's, or the cluster's."
    ),
]
Horizon = Annotated[str, typer.Option("--horizon", help="How far to look: 90s, 30m, 24h, 7d.")]
