"""The Dockerfile, and one version wherever one is named."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
import yaml

from tests.harness.repository import ROOT, relative, tracked

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
IMAGE = re.compile(r"gpujob-(?:operator|worker):([\w.-]+)")
# Tests have images of their own, and the changelog speaks of older ones.
NAMED = [
    path
    for pattern in ("*.md", "examples/*.yaml", "charts/*", "Dockerfile", "*/src/*.py")
    for path in tracked(pattern)
    if path.name != "CHANGELOG.md"
]
LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()


def stages() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in LINES:
        if line.startswith("FROM "):
            name = line.rpartition(" AS ")[2]
        if name and not line.startswith("#"):
            found.setdefault(name, []).append(line)
    return found


@pytest.mark.parametrize("path", NAMED, ids=relative)
def test_an_image_is_named_with_the_projects_version(path: Path) -> None:
    found = IMAGE.findall(path.read_text(encoding="utf-8"))
    assert {one for one in found if not one.startswith("$")} <= {VERSION}


def test_the_version_is_one_everywhere() -> None:
    chart = yaml.safe_load((ROOT / "charts/gpujob/Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    assert [line for line in LINES if line.startswith("ARG VERSION=")] == [
        f"ARG VERSION={VERSION}"
    ] * 2
    named = [path for path in NAMED if IMAGE.search(path.read_text(encoding="utf-8"))]
    assert {"README.md", "examples/gpujob.yaml", "docs/guides/kind.md"} <= {
        relative(path) for path in named
    }


def test_make_images_builds_what_the_examples_and_the_chart_name() -> None:
    command = ["make", "--dry-run", "images", "TORCH=cpu", "REGISTRY=r/", "BASE=b@sha256:1"]
    done = subprocess.run(
        [*command, "ENGINE=podman", "SOURCE_DATE_EPOCH=7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    operator, worker = (line.split() for line in done.stdout.splitlines())
    for words, target in ((operator, "operator"), (worker, "worker")):
        assert words[:2] == ["podman", "build"]
        assert words[words.index("--target") + 1] == target
        assert words[words.index("--tag") + 1] == f"r/gpujob-{target}:{VERSION}"
        assert {"BASE=b@sha256:1", "SOURCE_DATE_EPOCH=7", f"VERSION={VERSION}"} <= set(words)
    assert "TORCH=cpu" in worker


def test_every_stage_is_made_of_the_base_that_is_asked_for() -> None:
    bases = {line.split()[1] for line in LINES if line.startswith("FROM ")}
    assert bases == {"${BASE}"}


def test_stages_that_install_know_the_time_of_the_sources() -> None:
    for name, lines in stages().items():
        if any("pip" in line or "install_worker" in line for line in lines):
            assert any(line.startswith("ARG SOURCE_DATE_EPOCH") for line in lines), name


def test_nothing_is_kept_that_only_a_build_needs() -> None:
    for line in LINES:
        if "pip install" in line or "pip wheel" in line:
            assert "--no-cache-dir" in line, line
        if "pip install" in line and "/opt/gpujob" in line:
            assert "--no-compile" in line, line
        if "apt-get install" in line:
            assert "--no-install-recommends" in line, line
            assert "rm -rf /var/lib/apt/lists/*" in line, line
        assert not line.startswith("ADD "), "COPY says what it does"


def test_images_run_as_a_number_and_nobody_needs_its_name() -> None:
    for name in ("operator", "worker"):
        lines = stages()[name]
        assert [line for line in lines if line.startswith("USER")] == ["USER 65532:65532"]
        environment = " ".join(line for line in lines if line.startswith("ENV"))
        for variable in ("HOME=", "USER=", "LOGNAME="):
            assert variable in environment


def test_torch_is_cuda_or_cpu(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "install_worker.sh"
    done = subprocess.run(
        [str(script), str(tmp_path), str(tmp_path), "tpu"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "TORCH must be cuda or cpu; got 'tpu'" in done.stderr


def test_the_cpu_worker_has_what_the_cuda_worker_has_but_cuda() -> None:
    def names(name: str) -> set[str]:
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        return set(re.findall(r"^([a-z][\w.-]*==\S+)", text, re.MULTILINE))

    cuda, cpu = names("worker.txt"), names("worker-cpu.txt")
    assert cpu < cuda
    gone = {pin.partition("==")[0] for pin in cuda - cpu}
    assert {"torch", "triton"} <= gone
    assert {one for one in gone if not one.startswith(("nvidia-", "cuda-"))} == {"torch", "triton"}


def contents(folder: Path) -> dict[str, tuple[str, float]]:
    """Content and time of every file."""
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else sha256(path.read_bytes()).hexdigest(),
            path.lstat().st_mtime,
        )
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.slow
def test_two_builds_of_an_environment_are_equal(tmp_path: Path) -> None:
    script, seen = ROOT / "scripts" / "finish_environment.sh", list[dict[str, tuple[str, float]]]()
    folder = tmp_path / "environment"
    for _ in range(2):
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = next((folder / "lib").glob("python*/site-packages"))
        (packages / "ours.py").write_text("FACT = 1\n")
        subprocess.run(
            [str(script), str(folder)], env={**os.environ, "SOURCE_DATE_EPOCH": "86400"}, check=True
        )
        seen.append(contents(folder))
        shutil.rmtree(folder)
    assert seen[0] == seen[1]
    assert any(name.endswith("ours.cpython-311.pyc") or "ours" in name for name in seen[0])
    assert {time for _content, time in seen[0].values()} == {86400.0}
    assert not [name for name in seen[0] if name.startswith("bin/pip")]


def made(*words: str) -> "subprocess.CompletedProcess[str]":
    """A builder that builds nothing, and says what it was asked."""
    command = ["make", "--no-print-directory", *words, "ENGINE=echo", "VERSION=1"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("base", ["python:3.12-slim", "python", "python@sha512:00"])
def test_a_release_names_its_base_by_the_digest(base: str) -> None:
    refused = made("release-images", f"BASE={base}")
    assert refused.returncode != 0
    assert f"BASE={base} is a tag" in refused.stderr
    assert "build" not in refused.stdout
    digest = f"{base}@sha256:{'0' * 64}"
    built = made("release-images", f"BASE={digest}")
    assert built.returncode == 0, built.stderr
    assert built.stdout.count(f"--build-arg BASE={digest}") == 2


def test_the_labels_name_what_the_images_hold() -> None:
    """Of NVIDIA's libraries too, where they are in the image."""
    labels = re.findall(r'image\.licenses="([^"]*)"', "\n".join(LINES))
    assert len(labels) == 2
    operator, worker = (set(label.replace("${", " AND ${").split(" AND ")) for label in labels)
    assert "${CUDA_LICENSES}" in worker
    default = next(line for line in LINES if line.startswith("ARG CUDA_LICENSES="))
    assert "LicenseRef-NVIDIA-Proprietary" in default
    assert "--build-arg CUDA_LICENSES= " in made("images", "TORCH=cpu").stdout
    assert "CUDA_LICENSES" not in made("images", "TORCH=cuda").stdout
    for label, locked in ((operator, "operator"), (worker, "worker")):
        text = (ROOT / "requirements" / f"{locked}.txt").read_text()
        for name in re.findall(r"^([A-Za-z0-9_.-]+)==", text, re.MULTILINE):
            said = licence_of(name)
            nvidia = said == "LicenseRef-NVIDIA-Proprietary"
            known = set(re.split(r" AND | OR ", said.replace("(", "").replace(")", "")))
            assert nvidia or known <= label | {""}, f"{name}: {said}"


def licence_of(package: str) -> str:
    """As its metadata has it in SPDX's words; "" where it is not installed here or has none."""
    try:
        return str(metadata(package).json.get("license_expression") or "")
    except PackageNotFoundError:
        return ""
