"""Errors of checkpoints. Each of them has the class `Checkpoint` in the report."""


class CheckpointError(Exception):
    """Base of the errors here."""


class UnsavableError(CheckpointError):
    """A value has no form without pickle. The message has its path."""


class CorruptError(CheckpointError):
    """A checkpoint does not verify against its manifest."""


class UnreadableError(CheckpointError):
    """The system could not read a file, so it is not known whether the checkpoint is good."""


class FencedError(CheckpointError):
    """A newer attempt of the same job owns the directory. Nothing more may be committed."""


class MismatchError(CheckpointError):
    """A checkpoint verifies but does not fit the script's model, optimizer, data or classes."""
