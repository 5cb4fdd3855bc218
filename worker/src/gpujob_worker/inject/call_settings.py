"""Settings of a module's call. Each setting applies itself around the call and undoes that.

A plan holds such settings (`wrapped_module`) without knowing their types. A setting is a frozen
dataclass, so that plans can be compared.
"""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from gpujob_worker.inject.call_inputs import CallInputs


class CallSetting:
    """A setting without effect. Subclasses override what they need. A plan has at most one of each
    type.
    """

    def switch(self, on: bool) -> None:
        """Applies the setting to the whole process while a plan with it is active, and undoes it
        afterwards.

        Backward runs outside the call, so settings that backward needs belong here and not into
        `around`.
        """

    def fits(self, inputs: CallInputs) -> bool:
        """Returns whether the setting applies to this call. Other calls are unchanged."""
        del inputs
        return True

    def around(self) -> AbstractContextManager[object]:
        """Returns a context for the call, and for its recomputation in backward."""
        return nullcontext()

    def before(self, inputs: CallInputs) -> CallInputs:
        """Returns the inputs for the module's call."""
        return inputs

    def after(self, output: Any) -> Any:
        """Returns the outputs for the script."""
        return output


def switch(before: Sequence[CallSetting], after: Sequence[CallSetting]) -> None:
    """Switches the settings that differ. A setting that both have stays as it is."""
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
    """Returns a context of all settings, to be entered."""
    stack = ExitStack()
    for setting in settings:
        stack.enter_context(setting.around())
    return stack
