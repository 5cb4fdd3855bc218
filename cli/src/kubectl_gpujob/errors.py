"""Errors for the person at the terminal, and the exit codes of the commands."""

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_JOB_FAILED = 3
EXIT_TIMED_OUT = 4


class UserError(Exception):
    """An error that the user can act on. The text is the whole message."""

    exit_code = EXIT_FAILED


class UsageError(UserError):
    """Arguments that do not go together. The text names the argument."""

    exit_code = EXIT_USAGE


class NotFoundError(UserError):
    """The API server does not have the object."""


class NotCheckedError(Exception):
    """The API server was not reached, or did not answer whether it would accept an object."""
