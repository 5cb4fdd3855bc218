"""Which variables of a frame can still be read, by example."""

import dis
import sys
import textwrap
from types import CodeType
from typing import Any

import pytest

from gpujob_worker.resume.live_names import live_names, reads_any_name


def code_of(text: str) -> CodeType:
    """Of the function `f` in the text."""
    found: dict[str, Any] = {}
    exec(compile(textwrap.dedent(text), "f.py", "exec"), found)
    return found["f"].__code__


def script(text: str) -> CodeType:
    return compile(textwrap.dedent(text), "script.py", "exec")


def loops(code: CodeType) -> list[int]:
    return [each.offset for each in dis.get_instructions(code) if each.opname == "FOR_ITER"]


def live_at_loop(code: CodeType, number: int = 0) -> set[str]:
    return set(live_names(code, loops(code)[number]))


def live_at_call(code: CodeType, called: str) -> set[str]:
    """Just before `called` is loaded."""
    offsets = [each.offset for each in dis.get_instructions(code) if each.argval == called]
    return set(live_names(code, offsets[0]))


def test_what_a_loop_carries_is_live_and_what_it_makes_anew_is_not() -> None:
    code = code_of("""
        def f(model, loader, unused):
            total, started = 0, 1
            for batch in loader:
                loss = model(batch)
                total += loss
            return total
    """)
    assert live_at_loop(code) == {"model", "total"}


def test_what_only_a_later_statement_reads_is_live_in_the_loop() -> None:
    code = code_of("""
        def f(loader, path):
            for batch in loader:
                last = batch
            return path, last
    """)
    assert live_at_loop(code) == {"path", "last"}


def test_the_inner_loop_needs_what_the_outer_one_goes_on_with() -> None:
    code = code_of("""
        def f(epochs, loader, schedule, rows):
            for epoch in epochs:
                seen = 0
                for batch in loader:
                    seen += len(batch)
                rows.append(seen)
                schedule.step()
    """)
    assert live_at_loop(code, 0) == {"loader", "schedule", "rows"}
    assert live_at_loop(code, 1) == {"loader", "schedule", "rows", "seen"}


def test_a_name_that_one_branch_leaves_unwritten_is_live() -> None:
    code = code_of("""
        def f(loader, test):
            best = other = None
            for batch in loader:
                if test(batch):
                    best = batch
                    other = batch
                else:
                    other = None
                print(best, other)
    """)
    assert live_at_loop(code) == {"test", "best"}


def test_what_a_handler_reads_is_live_although_the_body_writes_it() -> None:
    code = code_of("""
        def f(loader, work):
            state = None
            for batch in loader:
                try:
                    state = work(batch)
                except ValueError as error:
                    print(state, error)
    """)
    assert live_at_loop(code) == {"work", "state"}


def test_what_finally_reads_is_live_on_the_way_out_too() -> None:
    code = code_of("""
        def f(loader, log, mode):
            try:
                for batch in loader:
                    if batch is None:
                        return 1
            finally:
                log(mode)
            return 2
    """)
    assert live_at_loop(code) == {"log", "mode"}


def test_a_body_that_writes_first_keeps_finally_from_needing_the_name() -> None:
    code = code_of("""
        def f(loader, log):
            for batch in loader:
                mode = 1
                try:
                    batch()
                finally:
                    log(mode)
    """)
    assert live_at_loop(code) == {"log"}


def test_an_open_file_of_with_is_live_only_where_the_body_writes_to_it() -> None:
    code = code_of("""
        def f(loader, path):
            with open(path) as file, open(path) as other:
                for batch in loader:
                    file.write(batch)
    """)
    assert live_at_loop(code) == {"file"}


def test_while_break_and_else() -> None:
    code = code_of("""
        def f(queue, limit, patience, done, spare):
            while limit:
                mark()
                limit -= 1
                if queue.pop():
                    patience -= 1
                    if not patience:
                        break
            else:
                done()
            return limit
    """)
    assert live_at_call(code, "mark") == {"queue", "limit", "patience", "done"}


def test_what_a_loop_deletes_must_be_there_only_if_it_does_not_make_it() -> None:
    code = code_of("""
        def f(loader, old):
            for batch in loader:
                loss = batch()
                del loss, batch
            del old
    """)
    assert live_at_loop(code) == {"old"}


def test_a_generator() -> None:
    code = code_of("""
        def f(loader, scale, unused):
            for batch in loader:
                got = yield batch * scale
                print(got)
    """)
    assert live_at_loop(code) == {"scale"}


def test_what_closures_share_is_always_live() -> None:
    code = code_of("""
        def f(loader, log):
            count, other = 0, 0
            def tell():
                nonlocal count
                count += 1
                log(count)
            for batch in loader:
                tell()
    """)
    assert live_at_loop(code) == {"count", "log", "tell"}


def test_a_free_variable_of_an_outer_function_is_live() -> None:
    found: dict[str, Any] = {}
    text = """
        def outer(scale):
            def f(loader):
                for batch in loader:
                    print(batch * scale)
            return f
    """
    exec(textwrap.dedent(text), found)
    assert live_at_loop(found["outer"](1).__code__) == {"scale"}


def test_what_a_comprehension_reads_is_live_and_its_own_names_are_not() -> None:
    code = code_of("""
        def f(loader, scales, unused):
            for batch in loader:
                print(batch, [scale for scale in scales], {a: b for a in scales for b in a})
                scale = a = b = 1
                print(scale, a, b)
    """)
    assert live_at_loop(code) == {"scales"}


def test_a_name_that_a_comprehension_uses_too_keeps_its_value() -> None:
    code = code_of("""
        def f(loader, a, b, c):
            for batch in loader:
                c = [a for a in batch]
                a, c = [b for b in c], a
                print(a, b, c)
    """)
    assert live_at_loop(code) == {"a", "b"}


def test_a_handler_around_a_comprehension_reads_the_name_it_used() -> None:
    code = code_of("""
        def f(loader, a):
            for batch in loader:
                try:
                    a = [a for a in batch]
                except ValueError:
                    print(a)
    """)
    assert live_at_loop(code) == {"a"}


@pytest.mark.parametrize("call", ["eval('a')", "exec('a')", "locals()", "vars()", "dir()"])
def test_everything_is_live_where_names_are_looked_up_by_text(call: str) -> None:
    code = code_of(f"""
        def f(a, loader):
            for batch in loader:
                temporary = batch
                print({call})
    """)
    assert live_at_loop(code) == {"a", "loader", "batch", "temporary"}
    assert reads_any_name(code)


@pytest.mark.parametrize("call", ["vars(a)", "dir(a)", "a.eval()", "a.locals"])
def test_asking_an_object_is_no_look_at_the_variables(call: str) -> None:
    code = code_of(f"""
        def f(a, loader):
            for batch in loader:
                temporary = batch
                print({call})
    """)
    assert live_at_loop(code) == {"a"}
    assert not reads_any_name(code)


@pytest.mark.parametrize("call", ["sys._getframe()", "inspect.currentframe()"])
def test_everything_is_live_where_the_frame_is_asked_for(call: str) -> None:
    assert reads_any_name(code_of(f"def f(a):\n    return {call}"))


SCRIPT = """
    import torch
    model, loader, total = make()
    unused = 1
    def step(batch):
        return model(batch) * scale
    for epoch in range(3):
        for batch in loader:
            loss = step(batch)
            total += loss
        print(total)
"""


def test_a_script_has_its_names_and_those_that_its_functions_load() -> None:
    live = live_at_loop(script(SCRIPT), 1)
    assert {"model", "scale", "step", "total", "loader"} <= live
    assert not live & {"torch", "unused", "batch", "loss", "epoch"}


def test_what_functions_of_functions_and_classes_load_is_live_in_a_script() -> None:
    code = script("""
        class Net:
            width = size
            def forward(self):
                return lambda: [deep for _ in self]
        for batch in loader:
            size = deep = 1
            print(batch)
    """)
    assert {"size", "deep"} <= live_at_loop(code)


def test_a_class_body() -> None:
    outer = script("""
        class Rows:
            found = []
            spare = 1
            for row in (1, 2):
                again = row
                found.append(again)
    """)
    (body,) = (each for each in outer.co_consts if isinstance(each, CodeType))
    live = live_at_loop(body)
    assert "found" in live
    assert not live & {"spare", "again", "row"}


def test_a_global_that_a_script_writes_first_is_dead() -> None:
    code = script("""
        global count, other
        count = other = 0
        for batch in loader:
            count = batch
            print(count, other)
    """)
    assert {"count", "other"} & live_at_loop(code) == {"other"}


def test_globals_in_any_function_make_a_script_read_everything() -> None:
    code = script(SCRIPT + "    def config(): return globals()\n")
    assert {"unused", "batch", "loss"} <= live_at_loop(code, 1)
    assert reads_any_name(code)


def test_locals_of_a_function_are_not_those_of_its_script() -> None:
    code = script(SCRIPT + "    def config(): return locals()\n")
    assert not reads_any_name(code)


def test_importing_the_script_itself_reads_everything() -> None:
    assert reads_any_name(script("def names():\n    import __main__\n    return __main__"))


def test_a_frame_within_a_call_is_at_that_call() -> None:
    seen: list[frozenset[str]] = []

    def look() -> int:
        frame = sys._getframe(1)
        seen.append(live_names(frame.f_code, frame.f_lasti))
        return 1

    def work(a: int, b: int, c: int) -> int:
        return a + look() + b

    work(1, 2, 3)
    assert seen == [{"b", "look"}]


def test_a_frame_that_has_not_begun_is_at_its_first_instruction() -> None:
    assert live_names(code_of("def f(a, b):\n    b = a\n    return b"), -1) == {"a"}


def rename(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """As if `dis` called an instruction otherwise; what is known of a code stays known."""
    plain = dis.get_instructions

    def renamed(code: CodeType) -> list[dis.Instruction]:
        return [each._replace(opname=new) if each.opname == old else each for each in plain(code)]

    monkeypatch.setattr(dis, "get_instructions", renamed)


def test_an_instruction_that_is_not_known_makes_everything_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = code_of("def f(a, b):\n    return a")
    assert live_names(code, 0) == {"a"}
    rename(monkeypatch, "RETURN_VALUE", "<83>")
    assert live_names.__wrapped__(code, 0) == {"a", "b"}


def test_an_unknown_instruction_on_a_variable_counts_as_a_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = code_of("def f(a, b):\n    a = b\n    return a")
    assert live_names(code, 0) == {"b"}
    rename(monkeypatch, "STORE_FAST", "STORE_FAST_LATER")
    assert live_names.__wrapped__(code, 0) == {"a", "b"}
