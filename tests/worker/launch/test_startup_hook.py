"""Every Python process of a run is watched; nothing is noticed of it where nothing trains."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

import gpujob_api
import gpujob_worker
from gpujob_worker.launch.command import HOOK_FOLDER, hooked, ignores_path, resolved
from tests.harness.pythons import VERSIONS, python

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]

# What stands for torch here: a library with a version and an optimizer.
TORCH = """
import sys
__version__ = "{version}"
sys.modules["torch.optim"] = optim = type(sys)("torch.optim")
class Optimizer:
    def __init__(self, *values): self.values = values
optim.Optimizer = Optimizer
"""
# Modules that are imported by a process that imports no training library.
QUIET = 20


def run(
    words: Sequence[str], folder: Path, *, path: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GPUJOB", "PYTHON"))}
    environment["PYTHONPATH"] = path
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        list(words),
        cwd=folder,
        env=hooked({**environment, **variables}),
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The worker's packages in one folder, as an image that is not ours gets them."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for package in (gpujob_api, gpujob_worker):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def with_torch(folder: Path, version: str = "2.3.1") -> str:
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch" / "__init__.py").write_text(TORCH.format(version=version))
    return str(folder)


def test_few_modules_are_imported_where_nothing_trains(tmp_path: Path) -> None:
    script = "import sys; print(*sorted(sys.modules))"
    before = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    after = run([sys.executable, "-c", script], tmp_path)
    more = set(after.stdout.split()) - set(before.stdout.split())
    assert "gpujob_worker.activation" in more
    assert not more & {"torch", "argparse", "json", "http", "urllib", "gpujob_api", "typing"}
    assert len(more) <= QUIET, sorted(more)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_python_runs_what_it_would_have_run(version: str, tmp_path: Path) -> None:
    program = python(version)
    if program is None:
        pytest.skip(f"no Python {version} here")
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['USERS'] = 'ran'\n")
    (tmp_path / "tool.py").write_text(
        "import os, sys\nimport sitecustomize\n"
        "assert sitecustomize.__file__.startswith(os.getcwd()), sitecustomize.__file__\n"
        "assert not [p for p in sys.path if p.endswith('python_path')]\n"
        "sys.stdout.write(os.environ['USERS'] + ' ' + ' '.join(sys.argv[1:]))\nsys.exit(3)\n"
    )
    done = run([program, "tool.py", "a"], tmp_path, path=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (3, "ran a", "")


@pytest.mark.parametrize(
    "text", ["raise ValueError('theirs')\n", "import no_such_module\n", "x = = 1\n"]
)
def test_a_users_sitecustomize_that_fails_fails_as_it_did(text: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(text)
    plain = subprocess.run(
        [sys.executable, "-c", "print(1)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    under = run([sys.executable, "-c", "print(1)"], tmp_path, path=str(tmp_path))
    assert (under.stdout, under.stderr) == (plain.stdout, plain.stderr)
    assert plain.stderr


def test_a_users_sitecustomize_may_be_a_package(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize").mkdir()
    (tmp_path / "sitecustomize" / "__init__.py").write_text("print('theirs')\n")
    assert run([sys.executable, "-c", ""], tmp_path, path=str(tmp_path)).stdout == "theirs\n"


TRAINS = """
    import os, sys, torch
    print("modules", "gpujob_worker.process" in sys.modules)
    torch.optim.Optimizer(1)
    sys.exit(4)
    """


@pytest.mark.parametrize("version", [v for v in VERSIONS if v not in ("2.7", "3.6", "3.8")])
def test_a_torch_that_is_too_old_is_said_once_by_who_trains(
    version: str, packages: Path, tmp_path: Path
) -> None:
    program = python(version)
    if program is None:
        pytest.skip(f"no Python {version} here")
    path = with_torch(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINS))
    message = tmp_path / "termination"
    hook = packages / "gpujob_worker" / "python_path"
    variables = {"GPUJOB_TERMINATION_FILE": str(message), "PYTHONPATH": f"{hook}:{path}"}
    done = subprocess.run(
        [program, "train.py"],
        cwd=tmp_path,
        env={**variables, "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    why = "everything skipped: torch 2.3.1 is older than 2.4; the script runs as written"
    assert done.stderr == f"gpujob: {why}\n"
    assert (done.returncode, done.stdout) == (4, "modules True\n")
    assert why in message.read_text()
    (tmp_path / "launcher.py").write_text("import torch\nprint('no optimizer')\n")
    silent = subprocess.run(
        [program, "launcher.py"],
        cwd=tmp_path,
        env={**variables, "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "no optimizer\n", "")


@pytest.mark.parametrize("version", [v for v in VERSIONS if v not in ("2.7", "3.6", "3.8")])
def test_every_module_is_imported_by_every_python(
    version: str, packages: Path, tmp_path: Path
) -> None:
    program = python(version)
    if program is None:
        pytest.skip(f"no Python {version} here")
    script = Path(__file__).parent / "import_all.py"
    hook = packages / "gpujob_worker" / "python_path"
    done = subprocess.run(
        [program, str(script), str(hook)],
        cwd=tmp_path,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    modules = sum(path.name != "__init__.py" for path in packages.rglob("*.py"))
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done.stdout + done.stderr
    assert int(lines[0]) > 0.8 * modules


def test_the_folder_may_stand_on_the_path_twice(tmp_path: Path) -> None:
    """The worker's image has it there by a name of its own, and `gpujob-run` puts it in front."""
    (tmp_path / "hook").symlink_to(HOOK_FOLDER)
    script = (
        "import sys\n"
        "finders = [type(finder).__name__ for finder in sys.meta_path]\n"
        "print(finders.count('ImportHook'), [p for p in sys.path if 'hook' in p.split('/')[-1:]])\n"
    )
    once = run([sys.executable, "-c", script], tmp_path)
    twice = run([sys.executable, "-c", script], tmp_path, path=str(tmp_path / "hook"))
    assert (twice.stdout, twice.stderr) == (once.stdout, "")
    assert once.stdout.startswith("7 ")


def test_the_switch(tmp_path: Path) -> None:
    path = with_torch(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINS))
    done = run([sys.executable, "train.py"], tmp_path, path=path, GPUJOB_INJECT="0")
    assert (done.returncode, done.stdout, done.stderr) == (4, "modules False\n", "")


BREAKAGES = {
    "the packages cannot be imported": ("gpujob_worker.activation", "ImportError: broken"),
    "the process cannot be imported": ("gpujob_worker.process", "ImportError: broken"),
    "a name is gone": ("gpujob_worker.hooks", "the worker cannot be put in: ImportError: broken"),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_what_cannot_be_imported_is_said_and_the_script_runs(name: str, tmp_path: Path) -> None:
    module, reason = BREAKAGES[name]
    (tmp_path / "sitecustomize.py").write_text("")
    hook = tmp_path / "hook"
    hook.mkdir()
    for path in HOOK_FOLDER.glob("*.py"):
        (hook / path.name).symlink_to(path)
    (hook / "gpujob_startup.py").unlink()
    broken = (
        (HOOK_FOLDER / "gpujob_startup.py")
        .read_text()
        .replace(
            "if fullname.partition",
            f"if fullname == {module!r}: raise ImportError('broken')\n"
            "        if fullname.partition",
        )
        .replace("os.path.realpath(__file__)", repr(str(HOOK_FOLDER / "gpujob_startup.py")))
    )
    (hook / "gpujob_startup.py").write_text(broken)
    path = with_torch(tmp_path, "2.9.0")
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAINS))
    environment = {"PYTHONPATH": f"{hook}{os.pathsep}{path}", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 4, done.stderr
    assert done.stdout.startswith("modules ")
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpujob: ")
    assert reason in line


def test_the_environment_of_a_run() -> None:
    made = hooked({"PYTHONPATH": f"/a::{HOOK_FOLDER}:/b", "X": "1"})
    assert made["PYTHONPATH"].split(os.pathsep) == [str(HOOK_FOLDER), "/a", "/b"]
    assert made["X"] == "1"
    assert hooked(made)["PYTHONPATH"] == made["PYTHONPATH"]
    assert hooked({})["PYTHONPATH"] == str(HOOK_FOLDER)


def test_programs_are_found_as_a_shell_finds_them() -> None:
    assert resolved(["python", "train.py"]) == [
        str(Path(sys.executable).parent / "python"),
        "train.py",
    ]
    assert resolved(["train.py", "a"]) == [
        str(Path(sys.executable).parent / "python"),
        "train.py",
        "a",
    ]
    assert (resolved(["sh", "-c", "x"]) or [""])[0].endswith("/sh")
    assert resolved([sys.executable, "x"]) == [sys.executable, "x"]
    assert resolved(["no-such-program"]) is None


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("python train.py -I", None),
        ("python -u -W error train.py", None),
        ("python -I train.py", "-I"),
        ("python3 -uE -m x", "-uE"),
        ("python -m x -E", None),
        ("sh -E", None),
        ("python", None),
    ],
)
def test_options_that_keep_the_hook_away(words: str, flag: str | None) -> None:
    assert ignores_path(words.split()) == flag
