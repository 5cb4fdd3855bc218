"""Settings of a module's call: each knows how to put itself around the call and to leave again.

A plan holds such settings (`wrapped_module`); nothing there knows what they are. A new one is a
frozen dataclass, so that plans can be compared.
"""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from gpujob_worker.inject.call_inputs import CallInputs


class CallSetting:
    """Does nothing by itself. A plan has at most one of each kind."""

    def switch(self, on: bool) -> None:
        """Turned on in the whole process while a plan with it is in force, and off afterwards.

        Backward runs outside the call: what backward needs belongs here and not into `around`.
        """

    def fits(self, inputs: CallInputs) -> bool:
        """Whether this call gets it; others go through as they are."""
        del inputs
        return True

    def around(self) -> AbstractContextManager[object]:
        """Entered around the call, and around what is computed again in backward."""
        return nullcontext()

    def before(self, inputs: CallInputs) -> CallInputs:
        """What the module is called with."""
        return inputs

    def after(self, output: Any) -> Any:
        """What the script gets."""
        return output


def switch(before: Sequence[CallSetting], after: Sequence[CallSetting]) -> None:
    """Changes what differs; what is in both stays as it is."""
    for setting in before:
        if setting not in after:
            setting.switch(False)
    for setting in after:
        if setting not in before:
            setting.switch(True)


@contextmanager
def switched(before: Sequence[CallSetting], after: Sequence[CallSetting]) -> Generator[None]:
    """`after` in place of `before`, which is in force."""
    switch(before, after)
    try:
        yield
    finally:
        switch(after, before)


def around(settings: Sequence[CallSetting]) -> ExitStack:
    """All of them; to be entered."""
    stack = ExitStack()
    for setting in settings:
        stack.enter_context(setting.around())
    return stack
