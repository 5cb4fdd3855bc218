"""The stages of a serving process, from loading the model to its end."""

from enum import IntEnum


class Stage(IntEnum):
    LOADING = 0
    SERVING = 1
    # Not ready any more. Requests are accepted, because some senders have not learned of it.
    DRAINING = 2
    # Requests are refused; those accepted before are answered.
    REFUSING = 3


class Lifecycle:
    """The stage, which only moves forward."""

    def __init__(self) -> None:
        self.stage = Stage.LOADING

    def enter(self, stage: Stage) -> None:
        self.stage = max(self.stage, stage)

    @property
    def is_ready(self) -> bool:
        return self.stage is Stage.SERVING

    @property
    def ends(self) -> bool:
        return self.stage >= Stage.DRAINING

    @property
    def refuses(self) -> bool:
        return self.stage is Stage.REFUSING
