"""Guards for the rules that no linter knows: sizes, names, what may be written in the tree."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.harness.repository import ROOT, relative, text_of, tracked

FUNCTION_LINES_MAX = 70
POLL_SECONDS_MAX = 0.1
# Nobody is excepted. To add a name here, say why beside it.
SIZE_EXCEPTIONS: frozenset[str] = frozenset()

# Written in halves, so that this file does not trip over itself.
PACKAGE_HOSTS = (
    "pypi" + ".org",
    "files.python" + "hosted.org",
    "download.py" + "torch.org",
    "proxy.go" + "lang.org",
    "registry.npm" + "js.org",
)
OUTSIDE = ".." + "/shared"
# A home directory, root's home, or another absolute path that exists on one machine only.
MACHINE_PATH = re.compile(r"(?<![\w.~$}-])/(?:work|root|home/[a-z]\w*|opt/wheels|tmp/[a-z]+)/")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files() -> list[Path]:
    return tracked("*.py")


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Function):
            yield node


def findings(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    found: list[str] = []
    for path in paths:
        for number, line in enumerate((text_of(path) or "").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:100]}")
    return found


def test_the_operator_folder_is_no_package() -> None:
    """It would shadow the standard library's `operator` wherever the root is on sys.path."""
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_no_package_registry_is_named() -> None:
    pattern = re.compile("|".join(re.escape(host) for host in PACKAGE_HOSTS))
    assert findings(pattern, tracked("*")) == []


def test_no_path_of_one_machine_is_named() -> None:
    assert findings(MACHINE_PATH, tracked("*")) == []


def test_the_machine_path_pattern_finds_what_it_should() -> None:
    assert MACHINE_PATH.search("cd /root" + "/project")
    assert MACHINE_PATH.search("path: /home" + "/ann/x")
    assert not MACHINE_PATH.search("COPY examples /workspace/examples")
    assert not MACHINE_PATH.search("local/work/queue")


def test_nothing_outside_the_tree_is_referred_to() -> None:
    assert findings(re.compile(re.escape(OUTSIDE)), tracked("*")) == []


def test_functions_stay_short() -> None:
    long = {
        f"{relative(path)}::{function.name}": lines
        for path in python_files()
        for function in functions(path)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    }
    assert not long.keys() - SIZE_EXCEPTIONS, long


def test_every_module_says_what_it_is() -> None:
    silent = [
        relative(path)
        for path in tracked("*/src/*.py", "bench/*.py")
        if path.read_text(encoding="utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_python_source_is_ascii() -> None:
    """Tests may hold other letters: somebody will put them into a name."""
    paths = [path for path in python_files() if not relative(path).startswith("tests/")]
    odd = [relative(path) for path in paths if not path.read_text(encoding="utf-8").isascii()]
    assert odd == []


def test_test_file_names_are_unique() -> None:
    """pytest's summary and coverage name files; two of one name would be read as one."""
    names = Counter(path.name for path in tracked("*/test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_test_hides_another_of_the_same_name() -> None:
    hidden: list[str] = []
    for path in tracked("*/test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
            names = Counter(node.name for node in scope.body if isinstance(node, Function))
            hidden += [f"{relative(path)}::{name}" for name, count in names.items() if count > 1]
    assert hidden == []


def real_sleeps(path: Path) -> Iterator[ast.Call]:
    """Calls of time.sleep and asyncio.sleep that wait in real time and do not say why.

    Under looptime asyncio's time is virtual. Where time itself is what a test is about, the line
    says so in a comment that starts with `real time:`.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    names = {"time.sleep"} if "pytest.mark.looptime" in text else {"time.sleep", "asyncio.sleep"}
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    for call in calls:
        if ast.unparse(call.func) in names and "# real time:" not in lines[call.lineno - 1]:
            yield call


def test_no_test_waits_for_a_guessed_time() -> None:
    """Tests wait for a condition with a deadline; between two looks a short pause is fine."""
    long: list[str] = []
    for path in tracked("*/test_*.py"):
        for call in real_sleeps(path):
            pause = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
            if not isinstance(pause, int | float) or pause > POLL_SECONDS_MAX:
                long.append(f"{relative(path)}:{call.lineno}: {ast.unparse(call)}")
    assert long == []


def test_properties_have_their_limits_from_one_profile() -> None:
    """What depends on the machine's speed is decided in tests/conftest.py, for all of them."""
    own = {"deadline", "suppress_health_check", "database", "derandomize", "print_blob"}
    found: list[str] = []
    for path in tracked("tests/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("settings"):
                given = own & {keyword.arg for keyword in node.keywords}
                found += [f"{relative(path)}:{node.lineno}: {name}" for name in sorted(given)]
    assert found == []
