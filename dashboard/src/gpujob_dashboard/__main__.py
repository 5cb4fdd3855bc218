"""`kubectl gpujob dashboard`: the page with one's own kubeconfig, or in the cluster."""

import argparse
import asyncio
import secrets
import signal
import sys
import time
import webbrowser
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gpujob_dashboard.api_server import APIServer, APIServerError, from_pod, through_kubectl
from gpujob_dashboard.rights import Reviews
from gpujob_dashboard.server import Dashboard, serve
from gpujob_dashboard.watched import Watched
from kubectl_gpujob.errors import EXIT_DONE, EXIT_FAILED, UserError
from kubectl_gpujob.kubectl import Kubectl, Target

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="kubectl gpujob dashboard",
        description="Show GPUs, queues and jobs in a browser. Nothing is written to the cluster.",
        allow_abbrev=False,
    )
    parser.add_argument("-n", "--namespace", help="namespace, if you may not list all jobs")
    parser.add_argument("--context", help="context of the kubeconfig")
    parser.add_argument("--kubeconfig", type=Path, help="kubeconfig file (default: kubectl's)")
    parser.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    parser.add_argument("--no-open", action="store_true", help="do not open the browser")
    parser.add_argument(
        "--in-cluster", action="store_true",
        help="run in a pod: viewers sign in with their own tokens and see what they may list",
    )  # fmt: skip
    parser.add_argument("--address", default="127.0.0.1", help="address to listen on")
    parser.add_argument(
        "--configuration", type=Path, help="the operator's configuration file, for what-if"
    )
    options = parser.parse_args(arguments)
    if not options.in_cluster and options.address not in _LOOPBACK:
        parser.error(
            f"--address {options.address}: without --in-cluster nobody signs in, so it must be a "
            "loopback address"
        )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    options = options_of(sys.argv[1:] if arguments is None else arguments)
    try:
        asyncio.run(_run(options))
    except (APIServerError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        print(f"error: --port {options.port}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        return EXIT_DONE
    return EXIT_DONE


async def _run(options: argparse.Namespace) -> None:
    # Ended by a signal, it ends kubectl's proxy as well.
    task = asyncio.current_task()
    assert task is not None, "it runs in one"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with _connected(options) as (server, namespace):
        watched = Watched(server, namespace)
        local = not options.in_cluster
        dashboard = Dashboard(
            server,
            watched,
            reviews=None if local else Reviews(server, time.monotonic),
            code=secrets.token_urlsafe(24) if local else "",
            hosts=_LOCAL_HOSTS if local else frozenset(),
            configuration=options.configuration,
        )

        def ready(port: int) -> None:
            _announce(dashboard, options, port)

        await serve(dashboard, options.address, options.port, ready)


@asynccontextmanager
async def _connected(options: argparse.Namespace) -> AsyncGenerator[tuple[APIServer, str]]:
    """Yields the API server, and the namespace for those who may not list all jobs."""
    if options.in_cluster:
        async with from_pod() as server:
            yield server, options.namespace or "default"
        return
    kubectl = Kubectl(Target(options.kubeconfig, options.context, options.namespace))
    namespace = await asyncio.to_thread(lambda: kubectl.namespace)
    async with through_kubectl(kubectl.flags) as server:
        # Fails here, with words, and not on every page.
        await server.get("/version")
        yield server, namespace


def _announce(dashboard: Dashboard, options: argparse.Namespace, port: int) -> None:
    host = f"[{options.address}]" if ":" in options.address else options.address
    if options.in_cluster:
        print(f"listening on {host}:{port}", flush=True)
        return
    address = f"http://{host}:{port}/login?code={dashboard.code}"
    print(f"The dashboard is at {address}", flush=True)
    print("The address works once; Ctrl+C ends the dashboard.", file=sys.stderr)
    if not options.no_open:
        webbrowser.open(address)


if __name__ == "__main__":
    sys.exit(main())
