"""Stands where the operator's report endpoint stands: keeps each program's newest report."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote

from gpujob_api.report import Reply, Report

REPORT_BYTES_MAX = 1 << 20


class Receiver:
    """Reports by program, at `url(name)`."""

    def __init__(self, port: int, reports: dict[str, Report]) -> None:
        self._port = port
        self.reports = reports

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._port}/{quote(name)}"


@contextmanager
def receiving() -> Generator[Receiver]:
    """Listens on a free port of the loopback interface while the context lasts."""
    reports: dict[str, Report] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = min(int(self.headers.get("Content-Length", "0")), REPORT_BYTES_MAX)
            text = self.rfile.read(length).decode()
            reports[unquote(self.path).removeprefix("/")] = Report.from_text(text)
            answer = Reply().to_text().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing: the table is what is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Receiver(server.server_address[1], reports)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
