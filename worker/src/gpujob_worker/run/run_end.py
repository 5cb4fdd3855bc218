"""What an end of the script is: a clean one, an interruption, or a failure with its class."""

from dataclasses import dataclass

from gpujob_api.report import Failure, FailureClass
from gpujob_worker.run.failure import MESSAGE_CHARACTERS_MAX, classify, is_interruption
from gpujob_worker.run.graceful_stop import Interrupted, is_launchers_stop


@dataclass(frozen=True, slots=True)
class RunEnd:
    """`broke_off`: a stop ended the script with an error, which chose no exit code."""

    clean: bool = False
    interrupted: bool = False
    broke_off: bool = False
    note: str = ""
    failure: Failure | None = None


def end_of(
    error: BaseException | None,
    *,
    stopped: bool,
    used_bytes: int | None = None,
    predicted_bytes: int | None = None,
) -> RunEnd:
    """`stopped`: a stop had been asked for, and was listened to, when the error appeared. Bytes are
    those of `classify`.
    """
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return RunEnd(clean=True)
    if isinstance(error, Interrupted):
        return RunEnd(interrupted=True)
    if is_launchers_stop(error):
        return RunEnd(interrupted=True, note="the launcher was asked to stop")
    if is_interruption(error, stopped=stopped):
        if isinstance(error, SystemExit):
            return RunEnd(interrupted=True, note=f"the script ended with exit code {error.code}")
        text = f"the script broke off with {type(error).__name__}: {error}"
        return RunEnd(interrupted=True, broke_off=True, note=text[:MESSAGE_CHARACTERS_MAX])
    if isinstance(error, SystemExit):
        text = f"the script ended with exit code {error.code}"
        return RunEnd(failure=Failure(FailureClass.USER_ERROR, text[:MESSAGE_CHARACTERS_MAX]))
    return RunEnd(failure=classify(error, used_bytes, predicted_bytes))
