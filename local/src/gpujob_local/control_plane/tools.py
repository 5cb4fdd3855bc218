"""The binaries of a control plane: found, or built once from pinned Go modules.

`python -m gpujob_local.control_plane.tools [kubernetes|helm|...]` prints the paths of those sets'
binaries. Without a set, it prints those of `DEFAULT_SETS` (`make tools`). A binary comes from, in
this order: KUBEBUILDER_ASSETS, the cache, PATH, and a build from a go.mod in `tools/` into the
cache. A binary that was not built here must have the version that the go.mod pins.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpujob_local.control_plane.go_toolchain import (
    ToolError,
    Version,
    cache_directory,
    find_go,
    go_settings,
    output_of,
    parse_version,
)

TOOLS_FOLDER = Path(__file__).resolve().parents[4] / "tools"
PROGRESS_SECONDS = 15.0
BUILD_ATTEMPTS = 2

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Binary:
    """One binary: its Go package, and how to get its version.

    `version_parts` is the number of leading version numbers that must equal the pinned ones.
    Without a `version_command` only binaries built here are used. `build_seconds` is the duration
    of a cold build on two cores. `tags` are build tags of its source.
    """

    name: str
    package: str
    module: str
    version_command: tuple[str, ...]
    version_parts: int
    build_seconds: int
    tags: str = ""


def _kubernetes(name: str, version_command: tuple[str, ...], build_seconds: int) -> Binary:
    package = f"k8s.io/kubernetes/cmd/{name}"
    return Binary(name, package, "k8s.io/kubernetes", version_command, 2, build_seconds)


def _containerd(name: str, build_seconds: int) -> Binary:
    # The versions on PATH are not read, because shim, daemon and client must come from one build.
    return Binary(name, f"{_CONTAINERD}/cmd/{name}", _CONTAINERD, (), 0, build_seconds)


_CONTAINERD = "github.com/containerd/containerd/v2"
_KWOK = "sigs.k8s.io/kwok"
_KARPENTER = "sigs.k8s.io/karpenter"
_KUEUE = "sigs.k8s.io/kueue"
_ETCD = "go.etcd.io/etcd/server/v3"
_PROMETHEUS = "github.com/prometheus/prometheus"
SETS: dict[str, tuple[Binary, ...]] = {
    "kubernetes": (
        Binary("etcd", _ETCD, _ETCD, ("--version",), 2, 40),
        _kubernetes("kube-apiserver", ("--version",), 170),
        _kubernetes("kube-scheduler", ("--version",), 20),
        _kubernetes("kube-controller-manager", ("--version",), 40),
        _kubernetes("kubectl", ("version", "--client"), 20),
    ),
    "helm": (
        Binary(
            "helm", "helm.sh/helm/v4/cmd/helm", "helm.sh/helm/v4", ("version", "--short"), 1, 100
        ),
    ),
    # Prometheus could find targets in two dozen clouds. Without these clients the build is minutes
    # shorter.
    "promtool": (
        Binary(
            "promtool",
            f"{_PROMETHEUS}/cmd/promtool",
            _PROMETHEUS,
            (),
            0,
            100,
            tags="remove_all_sd",
        ),
    ),
    "kubelet": (
        _kubernetes("kubelet", ("--version",), 140),
        _kubernetes("kube-proxy", ("--version",), 10),
    ),
    "containerd": (
        _containerd("containerd", 50),
        _containerd("containerd-shim-runc-v2", 5),
        _containerd("ctr", 5),
        Binary("pause", "./pause", _CONTAINERD, (), 0, 5),
    ),
    "coredns": (Binary("coredns", ".", "github.com/coredns/coredns", (), 0, 100),),
    # Plays kubelets in a benchmark.
    "kwok": (Binary("kwok", f"{_KWOK}/cmd/kwok", _KWOK, (), 0, 100),),
    # With its provider of played nodes, for tests/karpenter. The duration was measured next to
    # other work.
    "karpenter": (Binary("karpenter", f"{_KARPENTER}/kwok", _KARPENTER, (), 0, 1500),),
    # Its manager, for a benchmark that runs the same jobs through its queues.
    "kueue": (Binary("kueue", f"{_KUEUE}/cmd/kueue", _KUEUE, (), 0, 220),),
}
# The sets for a local cluster of process nodes and the chart's tests. Real kubelets need all sets.
DEFAULT_SETS = ("kubernetes", "helm", "promtool")


def find_tools(set_name: str = "kubernetes", say: Say | None = None) -> dict[str, Path]:
    """Returns the paths of a set's binaries by name, and builds missing ones.

    Raises `ToolError` with what to do if a build fails or `tools/` is missing.
    """
    say = say or _print
    pins = Pins.read(set_name)
    found = {
        binary.name: path
        for binary in SETS[set_name]
        if (path := _existing(binary, pins)) is not None
    }
    missing = [binary for binary in SETS[set_name] if binary.name not in found]
    if missing:
        found |= _build_missing(missing, pins, say)
    return found


@dataclass(frozen=True, slots=True)
class Pins:
    """The pins of a go.mod, and the cache folder that belongs to exactly these pins."""

    folder: Path
    go_version: Version
    versions: dict[str, str]
    cache: Path

    @classmethod
    def read(cls, set_name: str) -> "Pins":
        folder = TOOLS_FOLDER / set_name
        try:
            text = (folder / "go.mod").read_text()
            sums = (folder / "go.sum").read_bytes()
        except OSError as error:
            raise ToolError(
                f"cannot read {error.filename}: the tools are built from a checkout of the project"
            ) from None
        versions = dict(re.findall(r"^\s*(?:require )?(\S+) v(\d\S*)", text, re.MULTILINE))
        go_line = re.search(r"^go (\S+)", text, re.MULTILINE)
        go_version = parse_version(go_line.group(1)) if go_line else ()
        flags = repr([_linker_flags(binary, versions) for binary in SETS[set_name]])
        sources = b"".join(path.read_bytes() for path in sorted(folder.rglob("*.go")))
        tags = "".join(binary.tags for binary in SETS[set_name])
        content = text.encode() + sums + flags.encode() + sources + tags.encode()
        digest = hashlib.sha256(content).hexdigest()[:16]
        return cls(folder, go_version, versions, cache_directory() / "tools" / digest)

    def wanted(self, binary: Binary) -> Version:
        return parse_version(self.versions[binary.module])[: binary.version_parts]


def _linker_flags(binary: Binary, versions: dict[str, str]) -> str:
    version = versions[binary.module]
    if binary.name == "helm":
        return f"-s -w -X helm.sh/helm/v4/internal/version.version=v{version}"
    if binary.module != "k8s.io/kubernetes":
        return "-s -w"
    # Without these flags the server reports v0.0.0, and clients that read its version misbehave.
    package = "k8s.io/component-base/version"
    major, minor = version.split(".")[:2]
    stamp = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return "-s -w " + " ".join(f"-X {package}.{key}={value}" for key, value in stamp.items())


def _existing(binary: Binary, pins: Pins) -> Path | None:
    cached = pins.cache / "bin" / binary.name
    if not binary.version_command:
        return cached if cached.is_file() else None
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and _has_version(Path(assets) / binary.name, binary, pins):
        return Path(assets) / binary.name
    if cached.is_file():
        return cached
    on_path = shutil.which(binary.name)
    if on_path and _has_version(Path(on_path), binary, pins):
        return Path(on_path)
    return None


def _has_version(path: Path, binary: Binary, pins: Pins) -> bool:
    if not os.access(path, os.X_OK):
        return False
    wanted = pins.wanted(binary)
    return parse_version(output_of([str(path), *binary.version_command]))[: len(wanted)] == wanted


def _build_missing(missing: Sequence[Binary], pins: Pins, say: Say) -> dict[str, Path]:
    with _only_builder(pins.cache, say):
        # Another process may have built them while this one waited.
        todo = [binary for binary in missing if not (pins.cache / "bin" / binary.name).is_file()]
        if todo:
            _build_all(todo, pins, say)
    return {binary.name: pins.cache / "bin" / binary.name for binary in missing}


def _build_all(todo: Sequence[Binary], pins: Pins, say: Say) -> None:
    go = find_go(pins.go_version, TOOLS_FOLDER / "go" / "requirements.txt", say)
    minutes = sum(binary.build_seconds for binary in todo) / 60
    names = ", ".join(binary.name for binary in todo)
    say(f"building {names} from Go modules: about {minutes:.0f} min the first time on 2 cores")
    start = time.monotonic()
    with _build_folder(pins.cache) as folder:
        settings = go_settings(folder)
        for number, binary in enumerate(todo, start=1):
            labelled = _labelled(say, f"[{number}/{len(todo)}] {binary.name}")
            _build(go, binary, pins, settings, labelled)
    say(f"built {len(todo)} in {time.monotonic() - start:.0f} s, kept in {pins.cache}")


@contextmanager
def _build_folder(cache: Path) -> Generator[Path]:
    """Yields the folder for one build's downloads and objects: 3.6 GB for Kubernetes, useless
    afterwards.
    """
    folder = cache / "build"
    # A build that was killed left its folder.
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _labelled(say: Say, label: str) -> Say:
    return lambda text: say(f"{label}: {text}")


def _build(go: Path, binary: Binary, pins: Pins, settings: dict[str, str], say: Say) -> None:
    target = pins.cache / "bin" / binary.name
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{binary.name}.{os.getpid()}")
    command = [str(go), "build", "-mod=readonly", "-trimpath"]
    command += ["-tags", binary.tags, "-ldflags", _linker_flags(binary, pins.versions)]
    command += ["-o", str(temporary), binary.package]
    output = ""
    try:
        for attempt in range(1, BUILD_ATTEMPTS + 1):
            code, output = _run_with_progress(command, pins.folder, settings, binary, say)
            if code == 0:
                temporary.rename(target)
                return
            say(f"attempt {attempt} of {BUILD_ATTEMPTS} failed with exit code {code}")
        raise ToolError(f"building {binary.name} failed:\n{output[-2000:]}")
    finally:
        temporary.unlink(missing_ok=True)


def _run_with_progress(
    command: list[str], folder: Path, settings: dict[str, str], binary: Binary, say: Say
) -> tuple[int, str]:
    start = time.monotonic()
    say(f"started, about {binary.build_seconds} s when nothing is cached")
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        while True:
            try:
                output, _ = process.communicate(timeout=PROGRESS_SECONDS)
            except subprocess.TimeoutExpired:
                say(f"{time.monotonic() - start:.0f} s ...")
                continue
            say(f"finished after {time.monotonic() - start:.0f} s")
            return process.returncode, output.decode(errors="replace")
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@contextmanager
def _only_builder(cache: Path, say: Say) -> Generator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another build into {cache}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _print(text: str) -> None:
    sys.stderr.write(f"tools: {text}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    """Finds or builds the named sets or `DEFAULT_SETS`, and prints their paths."""
    unknown = [name for name in arguments if name not in SETS]
    if unknown:
        _print(f"unknown: {', '.join(unknown)}; there are: {', '.join(SETS)}")
        return 2
    try:
        for set_name in arguments or DEFAULT_SETS:
            for name, path in find_tools(set_name).items():
                sys.stdout.write(f"{name} {path}\n")
    except ToolError as error:
        _print(str(error))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
