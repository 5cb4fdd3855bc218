"""What is no token of a pod for us is refused without a question to the API server."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.port.pod_tokens import (
    CLOCK_ERROR_SECONDS_MAX,
    TOKEN_CHARACTERS_MAX,
    PodIdentity,
    claimed_identity,
)
from tests.harness.odd_json import ODD_SCALARS, to_json
from tests.harness.pod_tokens import claims_of, pod_token, token_of

NOW = 1_800_000_000.0
GOOD = pod_token("team", "job-1-0", "pod-uid")


def test_the_pod_that_a_token_claims() -> None:
    assert claimed_identity(GOOD, NOW) == PodIdentity("team", "job-1-0", "pod-uid")


@pytest.mark.parametrize("audience", ["gpujob", ["gpujob"], ["https://other", "gpujob"]])
def test_our_audience_may_be_one_of_several(audience: Any) -> None:
    token = pod_token("team", "job-1-0", "pod-uid", audience=audience)
    assert claimed_identity(token, NOW) is not None


@pytest.mark.parametrize("audience", ["https://kubernetes.default.svc", [], None, ["gpujobs"], 1])
def test_tokens_for_others_are_not_for_us(audience: Any) -> None:
    token = pod_token("team", "job-1-0", "pod-uid", audience=audience)
    assert claimed_identity(token, NOW) is None


def test_a_clock_may_be_wrong_by_an_hour_and_no_more() -> None:
    late = pod_token("team", "job-1-0", "pod-uid", expires=NOW - CLOCK_ERROR_SECONDS_MAX + 1)
    old = pod_token("team", "job-1-0", "pod-uid", expires=NOW - CLOCK_ERROR_SECONDS_MAX - 1)
    assert claimed_identity(late, NOW) is not None
    assert claimed_identity(old, NOW) is None


@pytest.mark.parametrize(
    "token",
    [
        "",
        "deadbeef",
        "a.b",
        "..",
        "a..c",
        f"{GOOD}.more",
        "é.é.é",
        "\udcff.a.b",
        token_of(b"\xff\xfe"),
        token_of(b"[" * 5000),
        token_of([]),
        token_of({}),
        pod_token("", "job-1-0", "pod-uid"),
        pod_token("team", "", "pod-uid"),
        pod_token("team", "job-1-0", ""),
        GOOD + "x" * TOKEN_CHARACTERS_MAX,
    ],
)
def test_what_is_no_token_of_a_pod(token: str) -> None:
    assert claimed_identity(token, NOW) is None


@pytest.mark.parametrize("name", ["aud", "exp", "kubernetes.io", "namespace", "pod", "uid"])
def test_odd_claims_are_refused_and_break_nothing(name: str) -> None:
    for value in ODD_SCALARS:
        claims: dict[str, Any] = dict(claims_of(GOOD))
        bound: dict[str, Any] = claims["kubernetes.io"]
        place = {"namespace": bound, "pod": bound, "uid": bound["pod"]}.get(name, claims)
        place[name] = value
        found = claimed_identity(token_of(to_json(claims)), NOW)
        assert found is None or all(
            isinstance(part, str) and part for part in (found.namespace, found.pod_uid)
        )


@given(st.text(max_size=300))
def test_any_text_is_an_answer(text: str) -> None:
    assert claimed_identity(text, NOW) is None
