"""The process that owns a named cluster.

`python -m gpujob_local.cluster.owner DIRECTORY OPTIONS.json`. It starts the cluster, answers the
command line on a socket, and ends everything on SIGTERM or SIGINT. If it is killed, the kernel and
the watchdog end everything.
"""

import json
import os
import socketserver
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpujob_local.cluster.cluster import ClusterError, ClusterOptions, LocalCluster, NodeOptions
from gpujob_local.cluster.owner_process import Say, ignore_signals, leave_on_signals, record, run
from gpujob_local.cluster.state import socket_path
from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.control_plane.control_plane import ControlPlaneOptions
from gpujob_local.gpus.cpu_cards import open_cards

REQUEST_BYTES_MAX = 64 * 1024


def options_to_text(options: ClusterOptions) -> str:
    return json.dumps(asdict(options), default=str)


def options_from_text(text: str) -> ClusterOptions:
    data = json.loads(text)
    data["nodes"] = tuple(
        NodeOptions(**node | {"gpus": tuple(node["gpus"])}) for node in data["nodes"]
    )
    data["images"] = {name: Path(folder) for name, folder in data["images"].items()}
    data["control_plane"] = ControlPlaneOptions(**data["control_plane"])
    data["operator_arguments"] = tuple(data["operator_arguments"])
    return ClusterOptions(**data)


class Owner:
    """Answers requests about one cluster. Requests that change it run one at a time."""

    def __init__(self, cluster: LocalCluster, stop: threading.Event) -> None:
        self._cluster = cluster
        self._stop = stop
        self._changing = threading.Lock()
        self._gpus = {
            node: open_cards(cluster.directory / "nodes" / node / "cards.json")
            for node in cluster.node_names()
        }
        self._commands: dict[str, Callable[..., Any]] = {
            "status": self._status,
            "down": self._stop.set,
            "reclaim": self._reclaim,
            "unmanaged_process": self._unmanaged_process,
            "kill": self._kill,
            "start": self._start,
        }

    def answer(self, request: bytes) -> dict[str, Any]:
        """Answers a request. Errors for people become {"error": text}; others are logged too."""
        try:
            wanted = json.loads(request)
            command = self._commands[wanted.pop("command")]
            return {"result": command(**wanted)}
        except (ClusterError, ApiError, OSError, ValueError) as error:
            return {"error": str(error)}
        except (KeyError, TypeError) as error:
            return {"error": f"not understood: {error!r}"}

    def _status(self) -> dict[str, Any]:
        cluster = self._cluster
        children = cluster.control_plane.children | cluster.children
        nodes = {item["metadata"]["name"]: item for item in _nodes(cluster)}
        cards = [
            {
                "node": node,
                "state": _node_state(nodes.get(node)),
                "index": index,
                "uuid": card.uuid,
                "memoryTotalBytes": card.memory_total_bytes,
                "memoryUsedBytes": card.memory_used_bytes,
                "utilizationPercent": card.utilization_percent,
                "processes": len(card.processes),
            }
            for node, source in self._gpus.items()
            for index, card in enumerate(source.read())
        ]
        parts = {name: child.pid if child.alive() else None for name, child in children.items()}
        return {"parts": parts, "cards": cards}

    def _reclaim(self, node: str, notice_seconds: float, grace_seconds: float) -> None:
        with self._changing:
            self._cluster.reclaim(node, notice_seconds, grace_seconds)

    def _unmanaged_process(self, card: str, memory_bytes: int) -> str:
        with self._changing:
            return self._cluster.start_unmanaged_process(self._find_card(card), memory_bytes)

    def _kill(self, part: str) -> None:
        with self._changing:
            self._cluster.kill_part(part)

    def _start(self, part: str) -> None:
        with self._changing:
            self._cluster.start_part(part)

    def _find_card(self, wanted: str) -> str:
        """Returns a card by its UUID, a unique beginning of it, or NODE/INDEX."""
        node, _, index = wanted.partition("/")
        if index.isdigit():
            uuids = self._cluster.cards(node)
            if int(index) < len(uuids):
                return uuids[int(index)]
        every = [uuid for node in self._cluster.node_names() for uuid in self._cluster.cards(node)]
        found = [uuid for uuid in every if uuid.startswith(wanted)]
        if len(found) != 1:
            raise ClusterError(
                f"{wanted!r} names {len(found)} cards; there are: {', '.join(every)}"
            )
        return found[0]


def _nodes(cluster: LocalCluster) -> list[dict[str, Any]]:
    try:
        return cluster.client().get("/api/v1/nodes")["items"]
    except (OSError, ApiError):
        return []


def _node_state(node: dict[str, Any] | None) -> str:
    if node is None:
        return "gone"
    conditions = {item["type"]: item["status"] for item in node["status"].get("conditions", [])}
    ready = "ready" if conditions.get("Ready") == "True" else "not ready"
    spot = node["metadata"]["labels"].get("gpujob.dev/spot") == "true"
    taints = {taint["key"] for taint in node["spec"].get("taints", [])}
    words = [ready, *(["spot"] if spot else [])]
    return ", ".join([*words, *(["reclaim"] if "gpujob.dev/reclaim" in taints else [])])


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, directory: Path, owner: Owner) -> None:
        self.owner = owner
        with socket_path(directory) as path:
            super().__init__(path, _Handler)


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        answer = self.server.owner.answer(self.rfile.readline(REQUEST_BYTES_MAX))
        self.wfile.write(json.dumps(answer).encode() + b"\n")


def own(directory: Path, options: ClusterOptions, say: Say) -> None:
    """Starts a cluster and keeps it until SIGTERM, SIGINT or `down`."""
    stop = threading.Event()
    leave_on_signals()
    with LocalCluster.start(options, directory, say) as cluster:
        with _Server(directory, Owner(cluster, stop)) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            record(directory, cluster)
            stop.wait()
            server.shutdown()
        ignore_signals()


def main(directory: str, options_file: str) -> int:
    os.umask(0o077)
    options = options_from_text(Path(options_file).read_text())
    return run(lambda say: own(Path(directory), options, say))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
