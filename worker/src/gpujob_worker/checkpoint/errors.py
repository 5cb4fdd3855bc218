"""What can be wrong with checkpoints; every error is of class `Checkpoint` in the report."""


class CheckpointError(Exception):
    """Base of the errors here."""


class UnsavableError(CheckpointError):
    """A value has no form without pickle; the message names where it is."""


class CorruptError(CheckpointError):
    """A checkpoint does not verify against its manifest."""


class UnreadableError(CheckpointError):
    """The system refuses to read a file: whether the checkpoint is good is not known."""


class FencedError(CheckpointError):
    """A newer attempt of the same job owns the directory; nothing more may be committed."""


class MismatchError(CheckpointError):
    """A checkpoint verifies but does not fit the script's model, optimizer, data or classes."""
