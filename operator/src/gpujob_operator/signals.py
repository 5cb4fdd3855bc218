"""Signals: events that one part reports and others act on, such as a change of leadership."""

from collections.abc import Callable
from typing import Generic, ParamSpec

Values = ParamSpec("Values")


class Signal(Generic[Values]):
    """Built before the part that reports it and the parts that act on it.

    Calling the signal calls every connected listener, in the order in which they were connected.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[Values, object]] = []

    def connect(self, *listeners: Callable[Values, object]) -> None:
        self._listeners.extend(listeners)

    def __call__(self, *args: Values.args, **kwargs: Values.kwargs) -> None:
        for listener in self._listeners:
            listener(*args, **kwargs)
