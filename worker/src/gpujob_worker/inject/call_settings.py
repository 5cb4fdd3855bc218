"""Settings of a module's call. Each setting knows how to apply itself around the call and how to
undo that.

A plan has such settings (`wrapped_module`) without knowing their kinds. A setting is a frozen
dataclass, so that plans can be compared.
"""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from gpujob_worker.inject.call_inputs import CallInputs


class CallSetting:
    """A setting without effect; subclasses override what they need. A plan has at most one of each
    kind.
    """

    def switch(self, on: bool) -> None:
        """Applied to the whole process while a plan with the setting is active, and undone
        afterwards.

        Backward runs outside the call, so what backward needs belongs here and not into `around`.
        """

    def fits(self, inputs: CallInputs) -> bool:
        """True if the setting applies to this call; other calls are unchanged."""
        del inputs
        return True

    def around(self) -> AbstractContextManager[object]:
        """Entered around the call, and around its recomputation in backward."""
        return nullcontext()

    def before(self, inputs: CallInputs) -> CallInputs:
        """Changes the inputs of the module's call."""
        return inputs

    def after(self, output: Any) -> Any:
        """Changes the outputs that the script gets."""
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
    """Changes the process from the settings `before` to the settings `after`."""
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
