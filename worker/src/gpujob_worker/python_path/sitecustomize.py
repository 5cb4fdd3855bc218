"""Run by every Python process that has this folder on PYTHONPATH, before its program.

It is written in the syntax of Python 2.7, because any Python of an image must be able to read it.
The `sitecustomize` that would have been found without this folder runs afterwards.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def start():
    """Starts the worker. Only its code runs in here, so no error in it is the program's."""
    if os.environ.get("GPUJOB_INJECT", "1") == "0" or sys.version_info < (3, 9):
        return
    try:
        import gpujob_startup

        gpujob_startup.start()
    except BaseException as error:  # even SystemExit, which would end the interpreter here
        text = "gpujob: nothing is injected: %s: %s\n" % (type(error).__name__, error)
        if sys.stderr is not None:
            sys.stderr.write(text)


def hand_over():
    """Restores the path, and runs the `sitecustomize` of the user or the distribution."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401  # pyright: ignore
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


start()
hand_over()
