"""The operator's own client over a connection to the simulated API server."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

from kubernetes.aio import client

from gpujob_operator.client.kube import Kube
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Manifest
from tests.simulation.connection import Connection, request_of
from tests.simulation.troubles import Request

HOST = "https://api.test"


CONFIGURATION = client.Configuration(host=HOST)


class SimulatedKube(Kube):
    """Everything of it is real but the connection."""

    def __init__(
        self, connection: Connection, heard: Callable[[str | None], None] = lambda date: None
    ) -> None:
        with patch.object(client, "ApiClient", return_value=connection):
            super().__init__(CONFIGURATION, heard=heard)
        self._connection = connection

    @property
    def requests(self) -> Counter[tuple[str, str]]:
        return self._connection.requests

    def known(self, kind: Kind) -> list[Manifest]:
        """What the server has, without asking it."""
        return self._connection.api.list(kind)

    def cut(self) -> None:
        self._connection.cut()

    async def _call(self, method: str, path: str, **options: Any) -> Manifest:
        request, _ = request_of(method, path, dry_run="dryRun" in options.get("query", ()))
        call = super()._call
        return await self._ask(request, lambda: call(method, path, **options))

    async def _ask(self, request: Request, call: Callable[[], Awaitable[Manifest]]) -> Manifest:
        """Mutants do something else here."""
        return await call()
