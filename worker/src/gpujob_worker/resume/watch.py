"""Joins the parts that resume unmodified scripts: one training at a time, whichever library runs
it.
"""

import contextlib
import functools
import os
import sys
from typing import Any

from torch.utils.data._utils import worker

from gpujob_worker.inject.fork_hooks import in_forked_children
from gpujob_worker.launch.import_hooks import when_imported
from gpujob_worker.resume import huggingface, lightning
from gpujob_worker.resume.own_checkpoints import OwnCheckpoints
from gpujob_worker.resume.plain_script import PlainScript, adapt_accelerate
from gpujob_worker.resume.unmodified import Unmodified
from gpujob_worker.run.session import Session

_LOADERS = "accelerate.data_loader"
_kept: list[Unmodified] = []


def watch(session: Session) -> None:
    """Called once torch was imported, with a checkpoint directory. Trainers are adapted when they
    are imported.
    """
    if not session.features.allows("resume"):
        return
    pattern = session.environment.settings.script_checkpoint
    if pattern is not None:
        session.log.skipped("resume", "the script keeps checkpoints of its own")
        session.before_report(OwnCheckpoints(session, pattern).look)
        return
    unmodified = Unmodified(session)
    unmodified.install()
    if not session.is_first:
        keep_from_group_signals(worker)
    in_forked_children(unmodified.stop)
    _kept.append(unmodified)
    plain = PlainScript(unmodified)
    plain.install()
    session.on_end(plain.ended)
    when_imported(huggingface.MODULE, functools.partial(huggingface.adapt, unmodified))
    for name in lightning.MODULES:
        when_imported(name, functools.partial(lightning.adapt, name, unmodified))
    when_imported(_LOADERS, lambda: adapt_accelerate(sys.modules[_LOADERS]))


def keep_from_group_signals(worker_module: Any) -> None:
    """Called in a rank that a launcher started. Forked loader processes get their own process
    group.

    Their parent still ends them, and they end by themselves when it is gone.
    """
    plain = worker_module._worker_loop

    @functools.wraps(plain)
    def _worker_loop(*arguments: Any, **keywords: Any) -> Any:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        return plain(*arguments, **keywords)

    worker_module._worker_loop = _worker_loop
