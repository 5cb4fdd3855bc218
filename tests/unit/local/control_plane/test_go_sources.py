"""Where the sources of a pinned Go module are."""

import os
from pathlib import Path

import pytest

from gpujob_local.control_plane import go_sources, tools
from gpujob_local.control_plane.go_toolchain import ToolError

ANSWER = '{"Path": "example.test/x", "Version": "v1.2.3", "Dir": "folder/x@v1.2.3"}'


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of tools and an empty PATH, to which a test adds its own `go`."""
    folder = tmp_path / "tools" / "kueue"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module x\ngo 1.26.0\nrequire sigs.k8s.io/kueue v0.19.2\n")
    (folder / "go.sum").write_text("")
    for module in (tools, go_sources):
        monkeypatch.setattr(module, "TOOLS_FOLDER", tmp_path / "tools")
    monkeypatch.setenv("GPUJOB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("GOFLAGS", "-mod=mod")
    return tmp_path


def go(machine: Path, body: str) -> None:
    program = machine / "bin" / "go"
    program.parent.mkdir()
    start = (
        f'#!/bin/sh\nif [ "$1" = env ]; then echo go1.26.8; exit; fi\nexport PATH={os.defpath}\n'
    )
    program.write_text(f"{start}{body}\n")
    program.chmod(0o755)


def test_go_says_where_the_sources_of_the_pinned_version_are(machine: Path) -> None:
    go(
        machine,
        f"echo \"$@\" in $PWD with [$GOFLAGS] to $GOMODCACHE >{machine}/asked; echo '{ANSWER}'",
    )
    found = go_sources.source_folder("kueue", "sigs.k8s.io/kueue", print)
    assert found == Path("folder/x@v1.2.3")
    asked = (machine / "asked").read_text()
    assert asked.startswith("mod download -json sigs.k8s.io/kueue in ")
    assert "tools/kueue with [-modcacherw] to " in asked, (
        "the user's flags must not change the pins"
    )
    folder = Path(asked.rpartition(" to ")[2].strip())
    assert folder.is_relative_to(machine / "cache")


def test_sources_that_cannot_be_downloaded_are_an_error_with_the_reason(machine: Path) -> None:
    go(machine, 'echo \'{"Error": "no network"}\'; exit 1')
    with pytest.raises(ToolError, match=r"sigs\.k8s\.io/kueue are missing:\n.*no network"):
        go_sources.source_folder("kueue", "sigs.k8s.io/kueue", print)
