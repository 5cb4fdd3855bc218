"""Receives the reports of a worker in place of an operator."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Operator:
    """A small HTTP server that answers as told and keeps what it got."""

    def __init__(self) -> None:
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[tuple[int, bytes]] = []
        operator = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                token = self.headers.get("Authorization", "")
                operator.received.append((token, json.loads(body)))
                code, answer = operator.answers.pop(0) if operator.answers else (200, b"{}")
                self.send_response(code)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                del format, args

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/report"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
