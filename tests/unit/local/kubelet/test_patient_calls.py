"""What a node asks of the API server gets through, whatever the API server says at first."""

import pytest

from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.kubelet import node_api
from gpujob_local.kubelet.node_api import patiently


class Server:
    """Answers after these refusals."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)

    async def call(self) -> str:
        if self._codes:
            raise ApiError(self._codes.pop(0), "Refused", "not now")
        return "done"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_api, "RETRY_SECONDS_MIN", 0.0)


async def test_what_says_later_is_asked_again() -> None:
    assert await patiently(Server(429, 503).call) == "done"


@pytest.mark.parametrize("code", [403, 404, 409])
async def test_a_refusal_goes_through(code: int) -> None:
    with pytest.raises(ApiError):
        await patiently(Server(code).call)


async def test_what_a_node_may_always_do_is_asked_again_until_roles_are_known() -> None:
    assert await patiently(Server(403, 401).call, forbidden_is_later=True) == "done"
    with pytest.raises(ApiError):
        await patiently(Server(403, 404).call, forbidden_is_later=True)
