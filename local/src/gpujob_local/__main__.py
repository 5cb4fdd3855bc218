"""`gpujob-local`: Kubernetes clusters of processes on this machine, with CPU cards for GPUs."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from gpujob_api.codec import FieldError
from gpujob_api.quantities import Memory, format_memory
from gpujob_api.version import installed_version
from gpujob_local.cluster.options import (
    DEFAULT_IMAGES,
    NODES_MAX,
    WORKER_IMAGE,
    ClusterOptions,
    NodeOptions,
)
from gpujob_local.cluster.owner import options_to_text
from gpujob_local.cluster.state import (
    LOG_NAME,
    STATE_NAME,
    ClusterState,
    StateError,
    ask_owner,
    cluster_directory,
    in_use,
    remove_root_if_empty,
)
from gpujob_local.control_plane.control_plane import ControlPlaneOptions
from gpujob_local.kubelets.commands import clean_leftovers, end, has_kubelets, kubelets_wanted
from gpujob_local.kubelets.options import KubeletOptions
from gpujob_local.kubelets.owner import options_to_text as kubelet_options_to_text
from gpujob_local.kubelets.requirements import Machine, refusal
from gpujob_local.processes.processes import MARKER, marked_processes
from gpujob_local.processes.watchdog import kill_marked

UP_LIMIT_SECONDS = 1800.0  # a first start builds the tools
DOWN_LIMIT_SECONDS = 30.0
OWNER_LIMIT_SECONDS = 90.0  # removing kubelets' files takes a while
POLL_SECONDS = 0.1
INSTALL_COMMAND = (
    "helm install gpujob charts/gpujob --namespace gpujob-system --create-namespace --wait "
    "--set agent.devices=cpu"
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help=__doc__,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console(highlight=False)

Name = Annotated[
    str, typer.Option(help="Name of the cluster; several clusters may run side by side.")
]


def _version(asked: bool) -> None:
    if asked:
        console.print(f"gpujob-local {installed_version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    del version


@app.command()
def up(
    name: Name = "default",
    nodes: Annotated[
        str, typer.Option(help="How many; or real kubelets: kubelet, kubelet:3 (Linux, root).")
    ] = "3",
    spot: Annotated[int, typer.Option(min=0, help="Number of spot nodes among them.")] = 1,
    cards: Annotated[int, typer.Option(min=0, max=64, help="CPU cards of each node.")] = 2,
    card_memory: Annotated[str, typer.Option(help="Memory of each card.")] = "2Gi",
    operator: Annotated[bool, typer.Option(help="Start the operator.")] = True,
    agents: Annotated[bool, typer.Option(help="Start an agent on every node.")] = True,
    audit: Annotated[bool, typer.Option(help="Keep the API server's audit log.")] = False,
    image: Annotated[
        list[str] | None, typer.Option(help="NAME=FOLDER: where an image's process starts.")
    ] = None,
) -> None:
    """Start a cluster; it stays until `down`.

    A cluster of kubelets takes --name and --audit alone; the chart is installed on it as on any
    cluster.
    """
    control_plane = ControlPlaneOptions(audit=audit)
    if (kubelets := kubelets_wanted(nodes)) is not None:
        try:
            options_of_kubelets = KubeletOptions(kubelets, control_plane=control_plane)
        except ValueError as error:
            raise typer.BadParameter(f"--nodes {nodes}: {error}") from None
        _up_kubelets(name, options_of_kubelets)
        return
    total = _number_of_nodes(nodes)
    if spot > total:
        raise typer.BadParameter(f"--spot {spot} is more than --nodes {total}")
    options = ClusterOptions(
        nodes=_nodes(total, spot, cards),
        card_bytes=_memory("--card-memory", card_memory),
        images=DEFAULT_IMAGES | _images(image or []),
        operator=operator,
        agents=agents,
        control_plane=control_plane,
    )
    _up(name, "gpujob_local.cluster.owner", options_to_text(options))


def _number_of_nodes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= NODES_MAX:
        raise typer.BadParameter(
            f"--nodes must be 1 to {NODES_MAX}, kubelet or kubelet:NUMBER; got {text!r}"
        )
    return int(text)


def _up_kubelets(name: str, options: KubeletOptions) -> None:
    if words := refusal(Machine.look()):
        raise StateError(words)
    _up(name, "gpujob_local.kubelets.owner", kubelet_options_to_text(options))
    console.print(f"then install the chart; {WORKER_IMAGE} is the image of your jobs:")
    console.print(f"  {INSTALL_COMMAND}")


def _up(name: str, owner_module: str, options: str) -> None:
    directory = _fresh_directory(name)
    began = time.monotonic()
    _start_owner(directory, owner_module, options)
    console.print(f"cluster {name} is up after {time.monotonic() - began:.1f} s; in your shell:")
    console.print(f"  {env_command(name)}", soft_wrap=True)


def env_command(name: str) -> str:
    """Returns the command with this program as it was called. It may not be on PATH yet, which the
    command changes.
    """
    called = sys.argv[0]
    known = shutil.which("gpujob-local") is not None
    program = "gpujob-local" if known or "/" not in called else shlex.quote(called)
    if called.endswith("__main__.py"):
        program = f"{shlex.quote(sys.executable)} -m gpujob_local"
    named = "" if name == "default" else f" --name {name}"
    return f'eval "$({program} env{named})"'


def _nodes(total: int, spot: int, cards: int) -> tuple[NodeOptions, ...]:
    plain = [NodeOptions(f"node-{number}", cards) for number in range(1, total - spot + 1)]
    return (*plain, *(NodeOptions(f"spot-{n}", cards, spot=True) for n in range(1, spot + 1)))


def _memory(option: str, text: str) -> int:
    try:
        return Memory.from_json(text, option).bytes
    except FieldError as error:
        raise typer.BadParameter(str(error)) from None


def _images(pairs: list[str]) -> dict[str, Path]:
    result: dict[str, Path] = {}
    for pair in pairs:
        name, separator, folder = pair.partition("=")
        if not separator or not Path(folder).is_dir():
            raise typer.BadParameter(f"--image must be NAME=FOLDER with a folder; got {pair!r}")
        result[name] = Path(folder).resolve()
    return result


def _fresh_directory(name: str) -> Path:
    directory = cluster_directory(name)
    if (directory / STATE_NAME).exists() and ClusterState.read(name).alive():
        raise StateError(f"cluster {name!r} is up already; `gpujob-local down --name {name}`")
    if clean_leftovers(directory):
        console.print(f"removed what an earlier cluster {name} left")
    if (directory / STATE_NAME).exists():
        kill_marked(f"{MARKER}={ClusterState.read(name).marker}")
        shutil.rmtree(directory)
    if directory.exists():
        if in_use(directory):
            raise StateError(f"cluster {name!r} is starting or ending ({directory})")
        shutil.rmtree(directory)
    directory.mkdir(mode=0o700)
    return directory


def _start_owner(directory: Path, module: str, options: str) -> None:
    """Starts the owning process and prints its output until the cluster is up."""
    (directory / "options.json").write_text(options)
    log = directory / LOG_NAME
    command = [sys.executable, "-m", module, str(directory)]
    with log.open("wb") as output:
        owner = subprocess.Popen(
            [*command, str(directory / "options.json")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Kept open, so that the log is still readable after a failed cluster has removed its folder.
    with log.open() as text:
        try:
            _retell(owner, text.read, directory / STATE_NAME)
        except BaseException:
            owner.terminate()
            owner.wait(OWNER_LIMIT_SECONDS)
            clean_leftovers(directory)
            shutil.rmtree(directory, ignore_errors=True)
            raise


def _retell(owner: "subprocess.Popen[bytes]", read: Callable[[], str], done: Path) -> None:
    deadline = time.monotonic() + UP_LIMIT_SECONDS
    while not done.exists():
        ended = owner.poll() is not None
        for line in read().splitlines():
            console.print(line, markup=False)
        if ended:
            raise StateError("the cluster did not start")
        if time.monotonic() > deadline:
            raise StateError(f"the cluster did not start within {UP_LIMIT_SECONDS / 60:.0f} min")
        time.sleep(POLL_SECONDS)


@app.command()
def down(name: Name = "default") -> None:
    """End a cluster and remove all that it kept, also what a crashed one left."""
    if has_kubelets(cluster_directory(name)):
        end(cluster_directory(name))
        remove_root_if_empty()
        console.print(f"cluster {name} is gone")
        return
    state = ClusterState.read(name)
    if state.alive():
        # The owner may be gone before it has sent its answer.
        with contextlib.suppress(StateError):
            ask_owner(name, "down")
    deadline = time.monotonic() + DOWN_LIMIT_SECONDS
    while Path(state.directory).exists() or marked_processes(state.marker):
        if time.monotonic() > deadline:
            _end_by_force(state)
            break
        time.sleep(POLL_SECONDS)
    remove_root_if_empty()
    console.print(f"cluster {name} is gone")


def _end_by_force(state: ClusterState) -> None:
    if state.alive():
        os.kill(state.owner_pid, signal.SIGKILL)
    kill_marked(f"{MARKER}={state.marker}")
    shutil.rmtree(state.directory, ignore_errors=True)


def _ask(name: str, command: str, limit_seconds: float = 30, **arguments: Any) -> Any:
    """Sends a command to the owner. Raises `StateError` for a cluster of kubelets, which only
    kubectl can query.
    """
    if has_kubelets(cluster_directory(name)):
        raise StateError(f"cluster {name!r} has real kubelets: use kubectl for {command}")
    return ask_owner(name, command, limit_seconds, **arguments)


@app.command()
def status(name: Name = "default") -> None:
    """Show parts, nodes and what is in use on the cards."""
    answer = _ask(name, "status")
    table = Table("node", "state", "card", "memory", "busy", "processes", box=None, pad_edge=False)
    for card in answer["cards"]:
        used, total = card["memoryUsedBytes"], card["memoryTotalBytes"]
        table.add_row(
            card["node"],
            card["state"],
            card["uuid"],
            f"{format_memory(used)} of {format_memory(total)}",
            f"{card['utilizationPercent']:.0f} %",
            str(card["processes"]),
        )
    console.print(table)
    ended = [part for part, pid in answer["parts"].items() if pid is None]
    running = len(answer["parts"]) - len(ended)
    console.print(f"{running} parts run; ended: {', '.join(ended) or '-'}")


@app.command()
def reclaim(
    node: str,
    notice: Annotated[float, typer.Option(min=0, max=3600, help="Seconds until SIGTERM.")] = 2.0,
    grace: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds from SIGTERM to SIGKILL.")
    ] = 10.0,
    name: Name = "default",
) -> None:
    """Reclaim a node like a cloud reclaims a spot node: notice, grace, gone."""
    limit = notice + grace + 60
    _ask(name, "reclaim", limit, node=node, notice_seconds=notice, grace_seconds=grace)
    console.print(f"{node} is gone")


@app.command()
def unmanaged_process(
    card: Annotated[str, typer.Argument(help="UUID, its beginning, or NODE/INDEX.")],
    memory: Annotated[str, typer.Option(help="Memory to allocate.")] = "800Mi",
    name: Name = "default",
) -> None:
    """Start an unmanaged process that allocates memory on a card; end it with `kill`."""
    amount = _memory("--memory", memory)
    part = _ask(name, "unmanaged_process", 120, card=card, memory_bytes=amount)
    console.print(part)


@app.command()
def kill(part: str, name: Name = "default") -> None:
    """End a part with SIGKILL: an unmanaged process, an agent, the operator, a node."""
    _ask(name, "kill", part=part)


@app.command()
def start(
    part: Annotated[str, typer.Argument(help="operator, NODE or agent-NODE.")],
    name: Name = "default",
) -> None:
    """Start a part again that was ended: the operator, an agent, a node with its agent."""
    _ask(name, "start", 120, part=part)


@app.command()
def logs(
    part: Annotated[
        str | None,
        typer.Argument(help="Name of the part. Without it, the command lists the parts."),
    ] = None,
    name: Name = "default",
) -> None:
    """Print what a part has logged."""
    directory = Path(ClusterState.read(name).directory)
    files = {path.stem: path for path in sorted(directory.glob("*/*.log"))}
    if part is None:
        console.print("\n".join(files))
    elif part not in files:
        raise StateError(f"no part {part!r}; there are: {', '.join(files)}")
    else:
        sys.stdout.write(files[part].read_text(errors="replace"))


@app.command()
def env(name: Name = "default") -> None:
    """Print what to set in a shell so that kubectl talks to the cluster."""
    for variable, value in ClusterState.read(name).environment.items():
        rest = ':"$PATH"' if variable == "PATH" else ""
        sys.stdout.write(f"export {variable}='{value}'{rest}\n")


def main() -> None:
    """Runs the program. Errors for people are one line and exit code 1."""
    try:
        app()
    except StateError as error:
        sys.stderr.write(f"gpujob-local: {error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
