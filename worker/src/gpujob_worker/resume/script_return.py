"""Brings a script back to its place by listening to the loops that it meets on the way."""

from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.checkpoint.store import Loaded
from gpujob_worker.resume import rerun
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.random_numbers import restore_random
from gpujob_worker.resume.script_place import NoPlaceError, current_frame, functions_of
from gpujob_worker.resume.script_state import FORMAT, ScriptState
from gpujob_worker.resume.way_back import NotReachedError, WayBack


class ScriptReturn:
    """`look` is called before each loop, and once starts the way to a checkpoint if there is one.

    `arrived` is called when everything except random numbers is restored, with a text and the loss
    of the passes since the last step. `gives_up` is called with the reason why the script cannot
    come back, and does not return.
    """

    def __init__(
        self,
        state: ScriptState,
        passes: Passes,
        look: Callable[[], None],
        arrived: Callable[[str, Any], None],
        gives_up: Callable[[str], NoReturn],
    ) -> None:
        self._state, self._passes = state, passes
        self._look, self._arrived, self._gives_up = look, arrived, gives_up
        self._way: WayBack | None = None
        self._body: Any = None

    @property
    def under_way(self) -> bool:
        return self._way is not None

    def start(self, loaded: Loaded) -> None:
        """Starts the script's way to this checkpoint."""
        body = loaded.state["body"]
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            self._gives_up(f"step-{loaded.step} has another layout")
        self._body = body
        self._way = WayBack(body["place"], body["over"], self._passes)
        self._state.objects.random.expect(body["drawn"])
        missing = self._way.files - rerun.files()
        if missing:
            changed = "; ".join(sorted(str(rerun.changed.get(file, file)) for file in missing))
            self._gives_up(f"the script is not the one that was saved: {changed}")

    def end(self) -> None:
        self._way = self._body = None
        self._state.objects.random.expect(())

    def loop(self, file: str, line: int, iterable: Any) -> Any:
        """Called when a listed `for` begins. Returns its items."""
        self._look()
        way, frame = self._way, current_frame(2)
        if way is None:
            return iterable
        try:
            if way.is_over(file, line, frame):
                self._state.variables.put_back_between(frame, self._body["values"])
                return iter(())
            if not way.expects(line, frame):
                return iterable
            self._state.variables.put_back_early(frame, self._body["values"], way.depth)
            iterator = way.advance(frame, iterable)
        except (NotReachedError, MismatchError, LookupError) as error:
            self._gives_up(str(error))
        if way.reached:
            self._arrive(frame)
        return iterator

    def turn(self, file: str, line: int) -> bool:
        """Called when a turn of a listed `while` begins. Returns whether to evaluate its
        condition.
        """
        self._look()
        way, frame = self._way, current_frame(2)
        if way is None:
            return True
        if way.is_over(file, line, frame):
            self._state.variables.put_back_between(frame, self._body["values"])
            return False
        if way.expects(line, frame):
            self._state.variables.put_back_early(frame, self._body["values"], way.depth)
            way.passes_while()
            if way.reached:
                self._arrive(frame)
        return True

    def _arrive(self, frame: FrameType) -> None:
        body = self._body
        self.end()
        try:
            self._state.put_back(body, functions_of(frame))
        except (MismatchError, NoPlaceError) as error:
            self._gives_up(str(error))
        objects, values = len(body["objects"]), len(body["values"]["nodes"])
        self._arrived(
            f"{objects} objects, {values} values of its variables, order and random numbers are put"
            " back",
            body["loss"],
        )
        restore_random(body["random"])
