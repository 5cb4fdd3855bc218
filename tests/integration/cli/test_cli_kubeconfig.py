"""Whatever is in the kubeconfig's place: one line that names it, and no traceback."""

from pathlib import Path

import pytest
import yaml

from kubectl_gpujob.cluster import connect
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.kubectl import Target

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("kubectl_in_path")]

WHOLE = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "lab",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
}

AUTHORITY_MISSING = {"server": "https://127.0.0.1:1", "certificate-authority": "/no.crt"}


def text(**changed: object) -> str:
    return yaml.safe_dump({**WHOLE, **changed})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{not yaml: [",
        "[]",
        "just text",
        text(contexts="lab"),
        text(contexts=[{"name": "lab"}]),
        text(contexts=[{"context": {}}]),
        text(contexts=[{"name": "lab", "context": {"cluster": "moon", "user": "u"}}]),
        text(clusters=None),
        text(clusters=[{"name": "c", "cluster": AUTHORITY_MISSING}]),
        yaml.safe_dump({name: value for name, value in WHOLE.items() if name != "current-context"}),
    ],
    ids=lambda content: content[:24],
)
def test_a_broken_kubeconfig_is_an_error_in_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(UserError) as raised:
        connect(Target(path, namespace="x")).job("x")
    said = str(raised.value)
    assert said
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 2


def test_a_missing_file_is_named_as_the_cause(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its kubeconfig file does not exist"):
        _ = connect(Target(tmp_path / "none")).namespace


def test_a_whole_one_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text())
    assert connect(Target(path)).namespace == "default"


def test_an_api_server_that_is_away_is_named_without_the_request(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text())
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1 was refused") as raised:
        connect(Target(path)).job("x")
    assert "/apis/" not in str(raised.value)
