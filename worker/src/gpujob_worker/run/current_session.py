"""The session of this process, for the small interface and for the hooks."""

import os

from gpujob_api.codec import FieldError
from gpujob_worker.run.environment import read_environment
from gpujob_worker.run.session import Session
from gpujob_worker.run.standard_error import say

_current: Session | None = None


def use(session: Session) -> None:
    """Sets this process's session."""
    global _current
    _current = session


def ensure_session() -> Session:
    """Returns the session of this process, which trains from now on."""
    session = known_session()
    session.start()
    return session


def known_session() -> Session:
    """Returns the session of this process, or a new one from the environment.

    A forked child has its parent's session, which counts its parent's steps and reports nothing
    here.
    """
    session = _current
    if session is not None and session.is_of_parent:
        session.begin_in_child()
        session = _current
    if session is None or session.is_of_parent:
        session = _made(session)
    return session


def _made(parent: Session | None) -> Session:
    try:
        environment = read_environment(os.environ)
    except FieldError as error:
        say(f"gpujob: {error}")
        raise SystemExit(2) from None
    session = Session(environment, parent=parent)
    use(session)
    return session
