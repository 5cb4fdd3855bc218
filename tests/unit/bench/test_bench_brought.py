"""What is brought along fits beside the checkout, and works where nothing is installed."""

import json
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from bench import gpu_pack
from bench.gpu_pack import checkout_files, needed_packages
from bench.shared import brought
from bench.shared.brought import BYTES_MAX, PACK_BYTES_MAX, PackError, tree_bytes
from tests.harness.repository import tracked

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def wheel(folder: Path, name: str, number: str, text: str) -> Path:
    path = folder / f"{name}-{number}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(f"{name}-{number}.dist-info/METADATA", f"Name: {name}\n")
    return path


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A pack with one small program and two wheels."""
    folder = tmp_path / "pack"
    folder.mkdir()
    wheels = [
        wheel(tmp_path, "gpujob_brought", "1.0", "WORD = 'brought'"),
        wheel(tmp_path, "pytest", "1.0", "raise SystemExit('an older pytest')"),
    ]
    brought.write_packages(wheels, folder / brought.PACKAGES, 1024**2)
    gpu_pack.write_metadata(folder / brought.METADATA)
    program = tmp_path / "etcd"
    program.write_text("#!/bin/sh\necho etcd Version: 3.6.0\n")
    program.chmod(0o755)
    brought.write_programs({"etcd": program}, folder / brought.PROGRAMS, 1024**2)
    (folder / brought.RECORD).write_text(json.dumps({"python": HERE}))
    return folder


def test_the_checkout_leaves_room_for_a_pack() -> None:
    """Most of it would be data that belongs elsewhere."""
    assert tree_bytes(tracked("*")) + PACK_BYTES_MAX <= BYTES_MAX


def test_a_pack_that_is_too_large_is_refused_with_its_largest_files(pack: Path) -> None:
    packed = brought.check_size(pack, 0)
    assert packed == tree_bytes(path for path in pack.rglob("*"))
    with pytest.raises(PackError, match=r"the pack has .* and the checkout 64.0 MiB.*largest: "):
        brought.check_size(pack, BYTES_MAX)
    (pack / "huge").write_bytes(bytes(2 * 1024**2))
    with pytest.raises(PackError, match=r"after --without \(largest: huge 2.0 MiB"):
        brought.check_size(pack, 0, limit_bytes=1024**2)


def test_unpacked_it_has_our_code_the_programs_and_the_missing_packages(
    pack: Path, tmp_path: Path
) -> None:
    found = brought.unpack(pack, tmp_path / "there")
    script = (
        "import gpujob_operator, gpujob_local, gpujob_brought, pytest, torch\n"
        "from importlib.metadata import version\n"
        "print(gpujob_brought.WORD, version('gpujob'), pytest.__version__)\n"
    )
    command = [str(found.python), "-c", script]
    # As on a machine that has no variable of ours.
    done = subprocess.run(command, capture_output=True, text=True, env={}, cwd="/", timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["brought", version("gpujob"), pytest.__version__]
    etcd = Path(found.variables["KUBEBUILDER_ASSETS"]) / "etcd"
    assert "3.6.0" in subprocess.run([etcd], capture_output=True, text=True, check=True).stdout
    run = subprocess.run(
        [found.python.parent / "gpujob-run", "--help"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr


def test_a_pack_for_another_python_is_refused(pack: Path, tmp_path: Path) -> None:
    (pack / brought.RECORD).write_text('{"python": "2.7"}')
    with pytest.raises(PackError, match=rf"is for Python 2.7, this is {HERE}: make it again"):
        brought.unpack(pack, tmp_path / "there")
    with pytest.raises(PackError, match="is no pack"):
        brought.unpack(tmp_path, tmp_path / "there")


def test_the_wheels_are_those_of_our_extras_without_torch() -> None:
    names = needed_packages()
    assert {"kopf", "kubernetes", "cryptography", "cffi", "safetensors", "xxhash"} <= set(names)
    assert not {"torch", "numpy", "triton", "pytest", "ruff"} & set(names)
    assert not [name for name in names if name.startswith("nvidia-c")]


def test_wheels_come_from_a_folder_and_missing_ones_are_named(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    wheel(source, "one_name", "1.0", "")
    wheel(source, "unwanted", "1.0", "")
    with pytest.raises(PackError, match="no wheel of other: add them to the folder"):
        gpu_pack.copy_wheels(["one-name", "other"], source, target, "3.12")
    assert [path.name for path in target.iterdir()] == ["one_name-1.0-py3-none-any.whl"]


def test_what_travels_is_what_git_does_not_ignore() -> None:
    names = {path.name for path in checkout_files()}
    assert "pyproject.toml" in names
    assert not any(".venv" in path.parts for path in checkout_files())
