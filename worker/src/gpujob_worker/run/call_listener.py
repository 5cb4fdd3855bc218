"""Called about the calls of a model that only answers, by whom the script is saved and resumed."""

from typing import Any


class CallListener:
    """Does nothing. A process with a checkpoint directory has one that acts."""

    @property
    def returns(self) -> bool:
        """Whether the script is on its way back to a checkpoint. Its calls there are no steps."""
        return False

    def before_call(self) -> None:
        """Called before each call of a model until the script is known to answer only."""

    def answered(self, output: Any) -> None:
        """Called after each step, with the output of its call."""
