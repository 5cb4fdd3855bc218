"""A small blocking client of the Kubernetes API, to set up a cluster and to query it."""

import json
import ssl
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

from gpujob_local.control_plane.identity import Identity

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

BUSY_TRIES = 50
BUSY_SECONDS = 0.1

Json = dict[str, Any]


class ApiError(Exception):
    """The API server refused a request: HTTP status code, reason such as NotFound, and
    its message.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason

    @classmethod
    def from_body(cls, code: int, body: bytes) -> "ApiError":
        try:
            status = json.loads(body)
            return cls(code, status.get("reason", ""), status.get("message", ""))
        except (ValueError, AttributeError):
            return cls(code, "", body[:500].decode(errors="replace"))


def ssl_context(identity: Identity) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(identity.authority))
    if identity.certificate is not None and identity.key is not None:
        context.load_cert_chain(identity.certificate, identity.key)
    return context


def headers(identity: Identity, content_type: str = "application/json") -> dict[str, str]:
    result = {"Content-Type": content_type, "Accept": "application/json"}
    if identity.token is not None:
        result["Authorization"] = f"Bearer {identity.token}"
    return result


class ApiClient:
    """Sends one request per call. Raises `ApiError` on refusal, and `OSError` if there is no
    answer.
    """

    def __init__(self, identity: Identity, limit_seconds: float = 30) -> None:
        self._identity = identity
        self._limit_seconds = limit_seconds
        handler = urllib.request.HTTPSHandler(context=ssl_context(identity))
        # No proxy, because these servers are on loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), handler)

    @property
    def token(self) -> str:
        """The token of its user, or "" if it has a certificate."""
        return self._identity.token or ""

    def request_bytes(
        self, method: str, path: str, body: bytes | None = None, content: str = "application/json"
    ) -> bytes:
        """Tries again for 5 s while the server answers "too many requests" or a new kind is not
        served yet.
        """
        for _ in range(BUSY_TRIES):
            try:
                return self._once(method, path, body, content)
            except ApiError as error:
                if error.code != 429:
                    raise
                time.sleep(BUSY_SECONDS)
        return self._once(method, path, body, content)

    def _once(self, method: str, path: str, body: bytes | None, content: str) -> bytes:
        request = urllib.request.Request(  # noqa: S310 - the server's address is https
            self._identity.server + path,
            data=body,
            method=method,
            headers=headers(self._identity, content),
        )
        try:
            with self._opener.open(request, timeout=self._limit_seconds) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            with error:
                raise ApiError.from_body(error.code, error.read()) from None

    def request(
        self, method: str, path: str, body: Json | None = None, content: str = "application/json"
    ) -> Json:
        data = None if body is None else json.dumps(body).encode()
        return json.loads(self.request_bytes(method, path, data, content))

    def get(self, path: str, **parameters: str) -> Json:
        return self.request("GET", f"{path}?{urlencode(parameters)}" if parameters else path)

    def create(self, path: str, body: Json) -> Json:
        return self.request("POST", path, body)

    def merge(self, path: str, body: Json) -> Json:
        return self.request("PATCH", path, body, MERGE_PATCH)

    def apply(self, path: str, body: Json) -> Json:
        """Creates or updates an object by server-side apply."""
        return self.request(
            "PATCH", f"{path}?fieldManager=gpujob-local&force=true", body, APPLY_PATCH
        )

    def delete(self, path: str) -> Json:
        return self.request("DELETE", path)
