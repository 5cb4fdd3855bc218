"""Why a backend cannot be built here."""


class BuildError(RuntimeError):
    """A package, a compiler or a device is missing. The message is the reason in the report."""
