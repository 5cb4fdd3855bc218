"""Whatever is in the kubeconfig's place: one line that names it, and no traceback."""

from pathlib import Path

import pytest
import yaml

from kubectl_gpujob.cluster import Target, connect
from kubectl_gpujob.errors import UserError

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
def test_a_broken_kubeconfig_is_named_in_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(UserError, match="no usable kubeconfig at") as raised:
        connect(Target(path))
    said = str(raised.value)
    assert str(path) in said
    assert "\n" not in said


def test_a_folder_is_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no usable kubeconfig at .*: .*directory"):
        connect(Target(tmp_path))


def test_a_whole_one_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text())
    assert connect(Target(path)).namespace == "default"


def test_who_cannot_be_reached_is_said_without_the_request(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text())
    with pytest.raises(UserError, match=r"cannot be reached: .*Connection refused") as raised:
        connect(Target(path)).job("x")
    assert "/apis/" not in str(raised.value)
