"""A script may ask for torch in any way before it imports it; the worker is there when it does."""

import importlib
import importlib.machinery
import importlib.util
import inspect
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpujob_worker.launch.import_hooks import ImportHook, when_imported

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]

# What a script does; `NAME` is a module that nobody imported yet.
QUESTIONS = {
    "nothing": "",
    "find_spec": "import importlib.util\nassert importlib.util.find_spec('NAME') is not None",
    "find_spec twice": """
        from importlib.util import find_spec
        assert find_spec("NAME").origin == find_spec("NAME").origin
        """,
    "every finder by itself": """
        import sys
        for finder in list(sys.meta_path):
            finder.find_spec("NAME", None)
        """,
    "pkgutil": """
        import pkgutil, warnings
        assert "NAME" in [module.name for module in pkgutil.iter_modules()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if hasattr(pkgutil, "find_loader"):
                assert pkgutil.find_loader("NAME").get_source("NAME")
                assert pkgutil.get_loader("NAME").is_package("NAME")
        """,
    "metadata": """
        import importlib.metadata
        try:
            importlib.metadata.version("NAME")
        except importlib.metadata.PackageNotFoundError:
            pass
        """,
    "caches": "import importlib\nimportlib.invalidate_caches()",
    "as libraries ask": """
        import importlib.metadata, importlib.util
        def is_available(name):
            if importlib.util.find_spec(name) is None:
                return False
            try:
                importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                return hasattr(importlib.util.find_spec(name), "origin")
            return True
        assert is_available("NAME")
        """,
    "source and resources": """
        import importlib.util
        spec = importlib.util.find_spec("NAME")
        assert spec.loader.get_filename("NAME") == spec.origin
        assert spec.loader.get_code("NAME").co_filename == spec.origin
        assert spec.loader.get_resource_reader("NAME").files().joinpath("part.py").is_file()
        """,
}
IMPORTS = {
    "import": "import NAME",
    "from": "from NAME import part",
    "submodule": "import NAME.part",
    "find_spec of a submodule": "import importlib.util\nimportlib.util.find_spec('NAME.part')",
    "import_module": "import importlib\nimportlib.import_module('NAME')",
    "__import__": "__import__('NAME')",
    "in a function": "def train():\n    import NAME\n    return NAME.VALUE\nassert train() == 1",
    "reload": "import importlib, NAME\nassert importlib.reload(NAME).VALUE == 1",
    "from its spec": """
        import importlib.util, sys
        spec = importlib.util.find_spec("NAME")
        sys.modules["NAME"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        """,
    "lazily": """
        import importlib.util, sys
        spec = importlib.util.find_spec("NAME")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        sys.modules["NAME"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert CALLS == []
        assert module.VALUE == 1
        """,
    "load_module": """
        import importlib.util, warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader = importlib.util.find_spec("NAME").loader
            if hasattr(loader, "load_module"):
                loader.load_module("NAME")
            else:
                import NAME
        """,
    "runpy": "import runpy\nassert runpy.run_module('NAME.script')['RAN']",
}
_numbers = itertools.count()


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that can be imported and was not."""
    chosen = f"asked_for_{next(_numbers)}"
    (tmp_path / chosen).mkdir()
    (tmp_path / chosen / "__init__.py").write_text("VALUE = 1\n")
    (tmp_path / chosen / "part.py").write_text("")
    (tmp_path / chosen / "script.py").write_text("RAN = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield chosen
    sys.meta_path[:] = before
    for module in [m for m in sys.modules if m.partition(".")[0] == chosen]:
        del sys.modules[module]


def run(text: str, name: str, calls: list[str]) -> None:
    exec(textwrap.dedent(text).replace("NAME", name), {"CALLS": calls, "__name__": "script"})


def hooked(name: str) -> tuple[ImportHook, list[str]]:
    calls: list[str] = []

    def after() -> None:
        assert sys.modules[name].__dict__["VALUE"] == 1
        calls.append("after")

    return when_imported(name, after, before=lambda: calls.append("before")), calls


@pytest.mark.parametrize("imported", IMPORTS)
@pytest.mark.parametrize("question", QUESTIONS)
def test_an_import_is_seen_whatever_was_asked_before(
    question: str, imported: str, name: str
) -> None:
    hook, calls = hooked(name)
    run(QUESTIONS[question], name, calls)
    assert (calls, hook.done) == ([], False)
    run(IMPORTS[imported], name, calls)
    assert (calls, hook.done) == (["before", "after"], True)
    assert hook not in sys.meta_path


def test_a_module_shows_nothing_of_the_hook(name: str) -> None:
    hooked(name)
    module = importlib.import_module(name)
    assert module.__spec__ is not None
    assert type(module.__loader__) is importlib.machinery.SourceFileLoader
    assert module.__spec__.loader is module.__loader__
    assert inspect.getsource(module) == "VALUE = 1\n"


def test_a_loader_that_was_asked_for_can_be_copied(name: str) -> None:
    hooked(name)
    spec = importlib.util.find_spec(name)
    assert spec is not None
    with pytest.raises(AttributeError):
        getattr(spec.loader, "no_such_attribute")  # noqa: B009 - the loader's type has none
    made: Any = type(spec.loader)
    with pytest.raises(AttributeError):
        made.__new__(made).name  # noqa: B018


def test_a_first_import_that_fails_keeps_the_hook(name: str, tmp_path: Path) -> None:
    source = tmp_path / name / "__init__.py"
    hook, calls = hooked(name)
    source.write_text("raise ImportError('libcudart.so')\n")
    run("try:\n    import NAME\nexcept ImportError:\n    NAME = None\n", name, calls)
    assert (calls, hook.done) == (["before"], False)
    source.write_text("VALUE = 1  # now\n")
    run("import NAME", name, calls)
    assert (calls, hook.done) == (["before", "after"], True)


def test_threads_import_at_the_same_time(name: str, tmp_path: Path) -> None:
    source = "import threading\nthreading.Event().wait(0.05)\nVALUE = 1\n"
    (tmp_path / name / "__init__.py").write_text(source)
    hook, calls = hooked(name)
    barrier, seen = threading.Barrier(8), list[Any]()

    def work() -> None:
        barrier.wait(60)
        assert importlib.util.find_spec(name) is not None
        # Whoever sees the module sees it after the callbacks.
        seen.append((importlib.import_module(name).__dict__["VALUE"], tuple(calls)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [(1, ("before", "after"))] * 8
    assert hook.done


def test_a_module_that_is_there_already(name: str) -> None:
    importlib.import_module(name)
    hook, calls = hooked(name)
    assert (calls, hook.done) == (["before", "after"], True)
    assert hook not in sys.meta_path


def test_a_module_that_was_forbidden_is_not_there(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # pyright: ignore[reportArgumentType]
    hook, calls = hooked(name)
    assert (calls, hook.done) == ([], False)


def test_a_module_that_cannot_be_found_stays_missing() -> None:
    hook = when_imported("no_such_module_anywhere")
    try:
        assert importlib.util.find_spec("no_such_module_anywhere") is None
        with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
            importlib.import_module("no_such_module_anywhere")
        assert not hook.done
    finally:
        sys.meta_path.remove(hook)


class Other(importlib.machinery.PathFinder):
    """Somebody else's hook, of the kind that asks all finders again."""

    def __init__(self, name: str, wrapped: list[str]) -> None:
        self.name, self.wrapped, self.asks = name, wrapped, False

    def find_spec(  # type: ignore[override]
        self, fullname: str, path: Any = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self.asks:
            return None
        self.asks = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asks = False
        assert spec is not None
        plain: Callable[[ModuleType], None] = getattr(spec.loader, "exec_module")  # noqa: B009

        def execute(module: ModuleType) -> None:
            plain(module)
            self.wrapped.append("other")

        spec.loader.exec_module = execute  # type: ignore[union-attr, method-assign]
        return spec


@pytest.mark.parametrize("in_front", [False, True])
def test_somebody_else_hooks_the_same_module(in_front: bool, name: str) -> None:
    wrapped: list[str] = []
    other: Any = Other(name, wrapped)
    if not in_front:
        sys.meta_path.insert(0, other)
    hook, calls = hooked(name)
    second, more = hooked(name)
    if in_front:
        sys.meta_path.insert(0, other)
    assert importlib.util.find_spec(name) is not None
    importlib.import_module(name)
    assert calls == more == ["before", "after"]
    assert hook.done
    assert second.done
    assert wrapped == ["other"]


NO_STEP = "tuning skipped: no optimizer of torch made a step\n"
SAID = {
    "threads": "tuning skipped: the run ended after 1 of the 7 steps that are measured first\n",
}
SCRIPTS = {
    "find_spec": "import importlib.util\nassert importlib.util.find_spec('torch')\nimport torch",
    "transformers": "import transformers\nassert transformers.is_torch_available()\nimport torch",
    "threads": """
        import importlib, threading
        threads = [threading.Thread(target=importlib.import_module, args=("torch",)) for _ in "ab"]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        import torch
        net = torch.nn.Linear(1, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(1, 1)).sum().backward(); opt.step()
        """,
    "lazily": """
        import importlib.util, sys
        spec = importlib.util.find_spec("torch")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        sys.modules["torch"] = torch = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(torch)
        print(torch.zeros(2).sum().item())
        """,
}


def under_worker(folder: Path, script: str, *, module: bool = False) -> str:
    (folder / "train.py").write_text(textwrap.dedent(script))
    command = ["-m", "train"] if module else ["train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "gpujob_worker", "--explain", "--", "python", *command],
        cwd=folder,
        env={**os.environ, "GPUJOB_SETTINGS": "{}"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


# torch deletes names of itself while it is executed.
LAZILY = pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="a lazy module that deletes a name of its own recurses, without the worker as well",
)


@pytest.mark.parametrize(
    "script", [pytest.param(s, marks=LAZILY) if s == "lazily" else s for s in SCRIPTS]
)
def test_the_worker_is_not_switched_off_by_a_question(script: str, tmp_path: Path) -> None:
    assert f"gpujob: {SAID.get(script, NO_STEP)}" in under_worker(tmp_path, SCRIPTS[script])


def test_nor_is_it_for_a_module(tmp_path: Path) -> None:
    said = under_worker(tmp_path, SCRIPTS["find_spec"], module=True)
    assert f"gpujob: {NO_STEP}" in said


def test_torch_that_came_past_the_hook_is_said(tmp_path: Path) -> None:
    script = """
        import sys
        sys.meta_path[:] = [finder for finder in sys.meta_path if isinstance(finder, type)]
        import torch
        """
    errors = under_worker(tmp_path, script)
    assert errors == "gpujob: everything skipped: torch was imported past the import hook\n"


def test_an_import_of_torch_that_is_broken_off_did_not_come_past_the_hook(tmp_path: Path) -> None:
    # As if a stop or a missing library ended it, after torch.optim was executed.
    script = """
        import sys
        sys.modules["torch.quasirandom"] = None
        try:
            import torch
        except ImportError:
            assert "torch.optim" in sys.modules
        """
    assert under_worker(tmp_path, script) == ""
