"""A script whose loops ask a listener is to itself and to its user what it is as written."""

from pathlib import Path

import pytest

from tests.harness.pythons import python
from tests.harness.rerun_scripts import loops, script

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]

VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]
EVERYTHING = '''
"""What is printed of a script."""
from __future__ import annotations
import argparse, atexit, enum, inspect, pickle, sys, traceback, typing, warnings
from dataclasses import dataclass

@dataclass
class Sample:
    number: int
    text: str = "x"

    def many(self):
        for each in range(self.number):
            yield each

class Meter:
    names = []
    for name in ("a", "b"):
        names.append(name)

    def __init__(self):
        self.__private = 0

    def count(self, upto):
        while self.__private < upto:
            self.__private += 1
        else:
            self.__private *= 10
        return self.__private

class Colour(enum.Enum):
    RED = 1

def nested(count):
    total = 0
    for i, row in enumerate(
        [[1, 2], [3]]
    ):
        for cell in row:
            if cell > count:
                break
            total += cell
        else:
            total += 100
    while True:
        total += 1
        if total % 7 == 0:
            return total

def where():
    warnings.warn("seen", stacklevel=2)
    return traceback.extract_stack()

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    print(sorted(name for name in globals()))
    print(__doc__, __file__, __name__, __package__, __spec__, type(__loader__), __builtins__)
    print(__loader__.path, __loader__.name, __loader__ is sys.modules["__main__"].__loader__)
    print(globals().get("__cached__", "none"), sys.argv, sys.path[0], sys.flags)
    print(sys._getframe().f_back, [entry.function for entry in inspect.stack()])
    for epoch in range(options.epochs):
        print(epoch, nested(2), Meter().count(3), Meter.names, list(Sample(3).many()))
        for line in where():
            print(line)
    for x in 1, *(2, 3): print(x)
    copy = pickle.loads(pickle.dumps([Sample(2), Colour.RED]))
    print(copy, copy[1] is Colour.RED, Sample.__module__, typing.get_type_hints(Sample))
    print(inspect.getsource(nested), inspect.getsourcelines(Meter.count)[1])
    print(nested.__code__.co_firstlineno, nested.__code__.co_varnames, Sample.many.__qualname__)
    atexit.register(lambda: print("over", "__file__" in globals(), "__cached__" in globals()))
    n = int(input())
    while n > 0 and (m := n):
        n -= 1
    print(n, m, sys.stdin.read())
'''


@pytest.mark.parametrize("version", VERSIONS)
def test_a_script_sees_and_shows_what_it_would(version: str, tmp_path: Path) -> None:
    program = python(version)
    if program is None:
        pytest.skip(f"there is no Python {version} here")
    folder = script(tmp_path, EVERYTHING, "--epochs", "3", program=program, input="4\nthe rest")
    folder.same()
    lines = [int(line.split()[1]) for line in folder.asked]
    assert sorted(set(lines)) == loops((tmp_path / "train.py").read_bytes())


ENDING = """
import atexit, sys, threading, time

def hook(kind, error, entries):
    print("hook", kind, entries.tb_frame.f_code.co_name, entries.tb_next is not None)

class Late:
    def __del__(self):
        print("late")

def inner(values):
    for each in values:
        raise ValueError(each)

atexit.register(lambda: print("first", getattr(sys, "last_value", None), "__file__" in globals()))
late = Late()
for number in (1, 2):
    print(number)
CODE
"""
ENDINGS = {
    "the last line": "print('last')",
    "a number": "sys.exit(7)",
    "a text": "sys.exit('a text')",
    "nothing": "sys.exit()",
    "in a loop": "while True: sys.exit(3)",
    "at once": "import os; sys.stdout.flush(); os._exit(9)",
    "an error": "inner([1])",
    "an error of an error": "try: inner([2])\nexcept ValueError as e: raise KeyError(3) from e",
    "an error while another is handled": "try: inner([2])\nexcept ValueError: len(1)",
    "an error in a loop's head": "for each in len(1): pass",
    "an error in the head of a while": "while len(1): pass",
    "an error of the iterator": "def give():\n    yield 1\n    len(1)\nfor each in give(): pass",
    "a hook of the script": "sys.excepthook = hook; inner([1])",
    "a hook that fails": "sys.excepthook = lambda *values: len(1); inner([1])",
    "no hook": "del sys.excepthook; inner([1])",
    "a usage error": "import argparse; argparse.ArgumentParser().parse_args(['--none'])",
    "a thread": "threading.Thread(target=lambda: (time.sleep(0.2), print('over'))).start()",
    "an error in a thread": "t = threading.Thread(target=inner, args=([1],)); t.start(); t.join()",
    "closed output": "sys.stdout.close()",
    "too deep": "def deep(): deep()\ntry: deep()\nexcept RecursionError as error: print(error)",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_script_ends_as_it_would(name: str, tmp_path: Path) -> None:
    """With the same output, errors, code, and all that is to run at an end."""
    source = ENDING.replace("CODE", ENDINGS[name])
    folder = script(tmp_path, source)
    folder.same()
    assert len(folder.asked) > 0


def test_after_an_interrupt_that_nobody_caught_the_code_is_another(tmp_path: Path) -> None:
    folder = script(tmp_path, "for _ in range(2):\n    raise KeyboardInterrupt")
    plain, again = folder.plain(), folder.again()
    assert again.stderr == plain.stderr
    assert (plain.returncode, again.returncode) == (-2, 1)


OPTIONS = (
    ["-u", "-O"],
    ["-OO"],
    ["-W", "error", "-X", "dev"],
    ["-X", "utf8", "-b", "-q"],
)
PLAIN = '''
"""Text."""
import sys
def f():
    "Text of f."
    for each in "ab":
        assert each == "a", each
        print(each, __debug__, f.__doc__, __doc__, sys.flags.optimize)
f()
'''


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_options_of_the_interpreter_hold(options: list[str], tmp_path: Path) -> None:
    folder = script(tmp_path, PLAIN)
    folder.command[0:0] = options
    folder.same()
    assert folder.asked == ["train.py 5 5"]


def test_a_warning_about_the_source_is_given_once(tmp_path: Path) -> None:
    folder = script(tmp_path, "import os\nfor x in 1, 2:\n    print(x is 1, '\\d')")
    end = folder.same()
    assert end.stderr.count("SyntaxWarning") == 1


def test_a_first_line_that_the_interpreter_leaves_out_is_left_out(tmp_path: Path) -> None:
    folder = script(tmp_path, "print('left out')\nfor x in 1, 2:\n    print(x)")
    folder.command[0:0] = ["-x"]
    assert folder.same().stdout == "1\n2\n"
    assert folder.asked == []


NOT_THE_MAIN_PROGRAM = {
    "inspected": (["-i", "train.py"], "print('typed', 1 + 1)\n"),
    "read from stdin": (["-"], "for x in 1, 2:\n    print(x)\n"),
    "a command": (["-c", "for x in 1, 2: print(x)\nimport sys; print(sys.argv)"], ""),
    "run by another program": (["-c", "import runpy; runpy.run_path('train.py')"], ""),
    "typed": (["-q"], "print(1)\n"),
}


@pytest.mark.parametrize("name", NOT_THE_MAIN_PROGRAM)
def test_what_is_run_in_another_way_runs_as_written(name: str, tmp_path: Path) -> None:
    command, typed = NOT_THE_MAIN_PROGRAM[name]
    folder = script(tmp_path, PLAIN.replace("assert", "# assert"))
    folder.command, folder.input = command, typed
    folder.same()
    assert folder.asked == []


TRACED = """
import sys
calls = []
def trace(frame, event, value):
    if frame.f_code.co_filename == __file__:
        calls.append((event, frame.f_code.co_name, frame.f_lineno))
    return trace
def f():
    for x in [1, 2]:
        x += 1
    while x < 6:
        x += 1
sys.settrace(trace)
f()
sys.settrace(None)
sys.setprofile(trace)
f()
sys.setprofile(None)
for call in calls:
    print(call)
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_tracer_of_the_script_sees_its_lines_in_their_order(version: str, tmp_path: Path) -> None:
    program = python(version)
    if program is None:
        pytest.skip(f"there is no Python {version} here")
    folder = script(tmp_path, TRACED, program=program, variables={"ASKED": "/dev/null"})
    folder.same()


HOOKS = """
import sys
events = []
sys.addaudithook(lambda event, values: events.append(event))
for x in 1, 2:
    compile("1", "x", "eval")
exec("for y in 1, 2: pass")
print(x, events.count("compile"), events.count("exec"))
sys.audit("some.event", [{}], {})
sys.audit("other.event")
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_events_that_the_script_raises_pass_by(version: str, tmp_path: Path) -> None:
    program = python(version)
    if program is None:
        pytest.skip(f"there is no Python {version} here")
    folder = script(tmp_path, HOOKS, program=program, variables={"ASKED": "/dev/null"})
    folder.same()


SPAWNS = """
import multiprocessing, sys
class Task:
    def __init__(self, number): self.number = number
def work(task):
    import helper
    total = helper.train(2)
    for each in range(task.number):
        total += each
    return total, __name__, Task.__module__
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2) as pool:
        for found in pool.map(work, [Task(2), Task(3)]):
            print(found)
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_processes_that_the_script_starts_run_its_functions(method: str, tmp_path: Path) -> None:
    folder = script(tmp_path, SPAWNS, method)
    helper = folder.write("helper.py", "def train(n):\n    for x in range(n): pass\n    return x\n")
    folder.lists(tmp_path / "train.py", helper)
    folder.same()
    # A child is not on the way back, though a forked one has the code that asks.
    assert folder.asked == ["train.py 13 13"]


SENDS_CODE = """
import marshal, subprocess, sys
def work():
    total = 0
    for each in 1, 2, 3:
        total += each
    return total
RECEIVES = "import marshal, sys; code = marshal.loads(sys.stdin.buffer.read());"
RECEIVES += "print(type(lambda: 0)(code, {})())"
code = marshal.dumps(work.__code__)
subprocess.run([sys.executable, "-c", RECEIVES], input=code, check=True)
"""


def test_functions_that_are_sent_by_their_code_run_where_they_come(tmp_path: Path) -> None:
    end = script(tmp_path, SENDS_CODE).same()
    assert end.stdout == "6\n"
