"""Guards for the files around the code: versions, requirements, Makefile, documents, scripts."""

import os
import re
import subprocess
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.repository import ROOT, relative, tracked

DOCUMENTS = tracked("*.md")
TEST_NAME = re.compile(r"`(tests/[\w/.-]+\.py)(?:::(\w+))?(?:::(\w+))?`")
MAKE_COMMAND = re.compile(r"(?:^|[`$ ])make ([a-z][a-z0-9-]*)", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
SECTION_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z0-9-]*):", text, re.MULTILINE))


def code_of(document: Path) -> str:
    """The document's code: fenced blocks and `spans`; prose may say 'make a change'."""
    text = document.read_text(encoding="utf-8")
    blocks = re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL)
    spans = re.findall(r"`[^`\n]+`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return "\n".join([*blocks, *spans])


def test_the_chart_has_the_projects_version() -> None:
    chart = yaml.safe_load((ROOT / "charts/gpujob/Chart.yaml").read_text(encoding="utf-8"))
    version = project()["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_the_changelog_knows_the_version() -> None:
    version = project()["project"]["version"]
    assert re.search(rf"^## \[(Unreleased|{re.escape(version)})\]", read("CHANGELOG.md"), re.M)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_console_script_has_its_module() -> None:
    for name, target in project()["project"]["scripts"].items():
        module = target.partition(":")[0].replace(".", "/") + ".py"
        assert list(ROOT.glob(f"*/src/{module}")), f"{name}: there is no {module}"


def test_the_makefile_names_the_package_caches_that_setup_fills() -> None:
    header = read("Makefile").partition("SHELL")[0]
    installs = re.findall(
        r"(?:-m |/)(pip|uv)\b.*\binstall(?!.*--no-cache)", read("scripts/setup.sh")
    )
    assert {f"{program}'s" for program in installs} <= set(re.findall(r"\w+'s", header))
    assert set(installs) == {"pip", "uv"}


@pytest.mark.parametrize("name", ["base", "torch", "uv", "build", "operator", "worker", "oldest"])
def test_requirements_are_locked_and_name_no_address(name: str) -> None:
    text = read(f"requirements/{name}.txt")
    entries = re.split(r"\n(?=[a-z])", text)
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in text


def test_images_install_what_was_tested() -> None:
    pins = re.compile(r"^([a-z][\w.-]*==\S+)", re.MULTILINE)
    tested = {pin for name in ("base", "torch") for pin in pins.findall(require(name))}
    for name in ("build", "operator", "worker"):
        assert set(pins.findall(require(name))) <= tested
    assert "\ntorch==" not in require("operator"), "the operator image stays small"


def require(name: str) -> str:
    return "\n" + read(f"requirements/{name}.txt")


def test_make_alone_lists_every_target() -> None:
    result = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = set(re.findall(r"^  make ([a-z0-9-]+)", result.stdout, re.MULTILINE))
    assert listed == make_targets()


def test_the_demo_builds_only_the_control_plane() -> None:
    result = subprocess.run(
        ["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    built = re.findall(r"-m gpujob_local\.control_plane\.tools\b *(.*)", result.stdout)
    assert built == ["kubernetes"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_commands_in_documents_exist(document: Path) -> None:
    assert set(MAKE_COMMAND.findall(code_of(document))) <= make_targets()


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_in_documents_lead_somewhere(document: Path) -> None:
    dead = [
        link
        for link in LINK.findall(document.read_text(encoding="utf-8"))
        if not (document.parent / link).exists()
    ]
    assert dead == []


def sections_of(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    titles = HEADING.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_to_sections_lead_somewhere(document: Path) -> None:
    dead = [
        f"{file}#{section}"
        for file, section in SECTION_LINK.findall(document.read_text(encoding="utf-8"))
        if section
        not in sections_of(
            (document.parent / file if file else document).read_text(encoding="utf-8")
        )
    ]
    assert dead == []


def test_a_sections_anchor_is_lower_case_with_dashes() -> None:
    text = "# How it's done: `x`\n```\n# no heading\n```\n## A-b c\n"
    assert sections_of(text) == {"how-its-done-x", "a-b-c"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_tests_named_in_documents_exist(document: Path) -> None:
    missing: list[str] = []
    for file, *names in TEST_NAME.findall(document.read_text(encoding="utf-8")):
        path = ROOT / file
        code = path.read_text(encoding="utf-8") if path.exists() else ""
        wanted = [name for name in names if name]
        if not path.exists() or any(not re.search(rf"\b{name}\b", code) for name in wanted):
            missing.append("::".join([file, *wanted]))
    assert missing == []


def test_the_readme_stays_readable() -> None:
    assert len(read("README.md").splitlines()) <= 150


@pytest.mark.parametrize("script", tracked("*.sh", ".ci/run"), ids=relative)
def test_scripts_run_and_stop_at_the_first_error(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_charts_crds_are_the_projects_crds() -> None:
    ours = {path.name: path.read_bytes() for path in (ROOT / "crds").glob("*.yaml")}
    copies = {
        path.name: path.read_bytes() for path in (ROOT / "charts/gpujob/files/crds").glob("*.yaml")
    }
    assert ours
    assert ours == copies, "make generate copies them"


def test_the_dockerfile_needs_no_special_builder() -> None:
    """RUN --mount and here-documents need BuildKit, which a plain engine does not have."""
    text = read("Dockerfile")
    assert not re.search(r"^RUN --|^# *syntax=|<<", text, re.MULTILINE)
    assert re.findall(r"^USER (.*)", text, re.MULTILINE) == ["65532:65532"] * 2


def test_what_the_dockerfile_copies_is_let_through() -> None:
    ignored = read(".dockerignore").splitlines()
    allowed = [line.removeprefix("!").removesuffix("/src") for line in ignored if line[:1] == "!"]
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.*)", read("Dockerfile"), re.MULTILINE)
    sources = [source for line in copied for source in line.split()[:-1]]
    for source in sources:
        assert any(fnmatchcase(source, pattern) for pattern in allowed), source
