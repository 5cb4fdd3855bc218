"""One process in which a training library was imported: its session, its hooks, and its end."""

import atexit
import contextlib
import multiprocessing
import os
import re
import sys
from multiprocessing import util
from typing import Any

from gpujob_api.codec import FieldError
from gpujob_api.report import Protection
from gpujob_api.settings import ENV_SETTINGS, EXIT_INTERRUPTED_UNSAVED, OptimizeMode
from gpujob_worker.adapters import huggingface, lightning, tensorflow_jax
from gpujob_worker.adapters.requested_settings import RequestedSettings
from gpujob_worker.device.cpu_cores import keep_to_cores
from gpujob_worker.device.segments import expand_segments
from gpujob_worker.launch import accelerate_launch, elastic_agent
from gpujob_worker.launch.batch_flags import adapt
from gpujob_worker.launch.first_process import (
    end_run,
    is_first_process,
    is_rank_of_first_process,
    is_started_by_first_process,
)
from gpujob_worker.launch.import_hooks import when_imported
from gpujob_worker.launch.resume_flags import adapt_resume
from gpujob_worker.options import Options, options_of_run
from gpujob_worker.run.current_session import use
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.environment import Environment, read_environment
from gpujob_worker.run.profiling import StepProfiler
from gpujob_worker.run.safety_net import SafetyNet, kind_and_text
from gpujob_worker.run.script_end import ScriptEnd
from gpujob_worker.run.session import Session
from gpujob_worker.run.settings_names import unknown_names

TORCH_OLDEST = (2, 4)
# Older versions only measure and do not tune, because they are not tested.
TORCH_TESTED = (2, 8)
PYTHON_TESTED = (3, 11)
# Programs that start others, which train. They may import torch themselves.
_LAUNCHERS = (
    "torch.distributed.run",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
)
STARTED_BELOW = (
    "another program of the run started this process, and only the container's first process is "
    "saved, or what it or its shell starts"
)
_VERSION = re.compile(r"(\d+)\.(\d+)")


class Process:
    """The worker in this process. Its methods raise nothing, so that the script runs as written
    after an error.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._prepared = self._ended = False
        self._options = Options()
        self._end = ScriptEnd()
        self._session: Session | None = None
        self._net = SafetyNet(DecisionLog())

    def prepare(self) -> None:
        """Called before the first training library is executed."""
        if self._prepared:
            return
        self._prepared = True
        self._net.guard(self._prepare)()

    def _prepare(self) -> None:
        keep_to_cores(os.environ)
        self._end.stops = self._is_stopped
        self._end.watch()
        atexit.register(self.end)
        reason = ""
        try:
            self._options = options_of_run(os.environ)
            if self._options.settings is not None:
                # Set for children of this process too, as under `gpujob-run`.
                os.environ[ENV_SETTINGS] = self._options.settings
            environment = read_environment(os.environ)
        except (FieldError, ValueError) as error:
            environment, reason = Environment(), str(error)
        log = DecisionLog(verbose=self._options.explain)
        self._net = SafetyNet(log)
        self._session = session = self._new_session(environment, log)
        if reason:
            session.inert_because(reason)
            return
        if session.is_first and session.listens_to_stops:
            # A thread would get in the way of a script that forks.
            session.stop.listen(watches=False)
        if session.optimizes:
            _begin_allocator(session)
            _adapt_trainers(session)

    def _new_session(
        self, environment: Environment, log: DecisionLog, parent: Session | None = None
    ) -> Session:
        options = self._options
        profiler = StepProfiler(options.profile) if options.profile is not None else None
        session = Session(
            environment,
            options.features,
            log,
            options.tuning_seconds,
            report_directory=options.report_directory,
            profiler=profiler,
            is_first=is_first_process(),
            is_hooked=True,
            parent=parent,
        )
        session.when_started(self._started)
        session.stop.end_run = end_run
        use(session)
        return session

    def _started(self) -> None:
        """Called when the process trains. Launchers and loader processes read the same settings but
        do not log.
        """
        names = unknown_names(os.environ.get(ENV_SETTINGS, ""))
        if names and self._session is not None:
            text = f"{', '.join(names)} ignored: not known to this worker"
            self._session.log.note("settings", text)
        if self._session is not None:
            _report_unsaved(self._session)
        self._end_with_library()

    def _end_with_library(self) -> None:
        """Registers the end in a child of multiprocessing, which leaves in its own way. Its errors
        are known there too.
        """
        if multiprocessing.parent_process() is not None:
            util.Finalize(None, self.end, exitpriority=0)

    def adapt_arguments(self) -> None:
        """Splits a batch and resumes by the script's own flags, if it has them."""
        self._net.guard(self._adapt_arguments)()

    def _adapt_arguments(self) -> None:
        session = self._session
        if session is None or session.inert:
            return
        settings, log = session.environment.settings, session.log
        script, *arguments = sys.argv
        if session.optimizes:
            table = self._options.argument_table
            arguments = adapt(script, arguments, settings.batch_per_step, log, table)
        directory = session.environment.checkpoint_directory
        sys.argv[1:] = adapt_resume(script, arguments, settings, directory, log)

    def torch_is_there(self) -> None:
        """Called when torch was executed; puts the hooks into it."""
        self._net.guard(self._torch_is_there)()

    def _torch_is_there(self) -> None:
        session = self._session
        if session is None:
            return
        torch: Any = sys.modules["torch"]
        reason = session.inert or _too_old(str(getattr(torch, "__version__", "")))
        if reason is not None:
            self._say_when_it_trains(torch, reason)
            return
        session.measures_only(_untested(str(torch.__version__)))
        try:
            self._hook(session)
        except Exception as error:
            # An error of a changed torch, which is logged when an optimizer is made.
            self._net.cut = True
            self._say_when_it_trains(torch, f"the worker cannot be put in: {kind_and_text(error)}")

    def _hook(self, session: Session) -> None:
        from gpujob_worker.hooks import Hooks

        if session.is_first and session.listens_to_stops:
            session.listen_for_stop()
            when_imported(accelerate_launch.MODULE, self._net.guard(accelerate_launch.adapt))
        Hooks(session, self._net, self._again_in_child).install()
        if session.listens_to_stops:
            adapt_agent = self._net.guard(lambda: elastic_agent.adapt(session))
            when_imported(elastic_agent.MODULE, adapt_agent)
        if session.is_first or is_started_by_first_process():
            # Other processes would write into the same folder.
            self._net.guard(lambda: _watch_for_resume(session))()

    def _again_in_child(self) -> Any:
        """Called when a forked child trains. It gets its own run, in which the parent's hooks are
        off.
        """
        from gpujob_worker.hooks import Hooks

        parent = self._session
        assert parent is not None
        self._process = os.getpid()
        self._ended = False
        log = DecisionLog(verbose=self._options.explain)
        self._net = SafetyNet(log)
        self._session = self._new_session(read_environment(os.environ), log, parent)
        self._session.measures_only(parent.why_only_measures)
        hooks = Hooks(self._session, self._net, self._again_in_child)
        hooks.install()
        return hooks

    def _say_when_it_trains(self, torch: Any, reason: str) -> None:
        """Logs the reason once an optimizer is made, because launchers and loader processes import
        torch too.
        """
        if self._session is not None:
            self._session.inert_because(reason)
        optimizer = getattr(getattr(torch, "optim", None), "Optimizer", None)
        if optimizer is None or self._session is None:
            self._net.say(reason)
            return
        session, plain, net = self._session, optimizer.__init__, self._net

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if optimizer.__init__ is __init__:
                optimizer.__init__ = plain
                net.say(reason)
                with contextlib.suppress(Exception):
                    session.start()
            plain(self, *args, **kwargs)

        optimizer.__init__ = __init__

    def end(self) -> None:
        """Called at the end of the script, by the interpreter's exit or by a child's own
        library.
        """
        session = self._session
        if session is None or os.getpid() != self._process or self._ended:
            return
        self._ended = True
        with contextlib.suppress(Exception):
            if session.started or session.is_first or self._is_failed_rank():
                self._say_if_past_the_hook(session)
                stopped = self._end.stopped
                session.finish(self._end.error, launches=_is_launcher(), stopped=stopped)
                if session.leaves_run_unfinished:
                    end_run()
        listens = session.listens_to_stops and not session.inert
        if session.is_unfinished or (session.broke_off and listens):
            _leave_unfinished()

    def _is_failed_rank(self) -> bool:
        """Returns whether a launcher's rank failed before it trained. The launcher itself only
        reports an exit code.
        """
        return self._end.error is not None and is_rank_of_first_process()

    def _is_stopped(self) -> bool:
        return self._session is not None and self._session.stop.requested

    def _say_if_past_the_hook(self, session: Session) -> None:
        hooked = session.state.torch_version or session.inert or self._net.cut
        # Optimizers exist once torch was executed. A lazily loaded torch is listed without them.
        # One whose import was broken off, by a stop or an error, is not listed.
        if not hooked and {"torch", "torch.optim"} <= sys.modules.keys():
            session.log.skipped("everything", "torch was imported past the import hook")


def _begin_allocator(session: Session) -> None:
    settings = session.environment.settings
    known = settings.tuned is not None and settings.tuned.expandable_segments
    allowed = session.features.allows("expandable_segments")
    if known and allowed and settings.mode is OptimizeMode.AUTO:
        expand_segments(os.environ)


def _adapt_trainers(session: Session) -> None:
    settings, log = session.environment.settings, session.log
    if settings.mode is OptimizeMode.RECOMMEND or not session.features.allows("trainers"):
        return
    wishes = RequestedSettings.of(settings, session.features)
    huggingface.watch(wishes, log)
    lightning.watch(wishes, log)
    tensorflow_jax.watch(settings, log)


def _report_unsaved(session: Session) -> None:
    """Reports that a process that another program of the run started is not saved."""
    directory, state = session.environment.checkpoint_directory, session.state
    owns = session.environment.settings.script_checkpoint is not None
    if directory is None or owns or not session.optimizes or not session.features.allows("resume"):
        return
    if state.protection is None and not (session.is_first or is_started_by_first_process()):
        session.log.skipped("resume", STARTED_BELOW)
        state.protected(Protection.FROM_BEGINNING, STARTED_BELOW)


def _watch_for_resume(session: Session) -> None:
    """Checkpoints need packages that not every image has. Everything else works without them."""
    if session.environment.checkpoint_directory is None or not session.optimizes:
        return
    try:
        from gpujob_worker.resume.watch import watch
    except ModuleNotFoundError as error:
        if str(error.name).startswith("gpujob_"):
            raise
        session.log.skipped("resume", f"there is no package {error.name} here")
        return
    watch(session)


def _leave_unfinished() -> None:
    """Exits with the code of an unfinished run. Nothing else changes the code at the interpreter's
    exit.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(EXIT_INTERRUPTED_UNSAVED)


def _is_launcher() -> bool:
    # A program run by `python -m` has its name nowhere else.
    run = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None)
    return run in _LAUNCHERS or any(name in sys.modules for name in _LAUNCHERS)


def _version(text: str) -> tuple[int, ...]:
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found is not None else (0, 0)


def _too_old(torch_version: str) -> str | None:
    if _version(torch_version) >= TORCH_OLDEST:
        return None
    return f"torch {torch_version or 'without a version'} is older than {_dotted(TORCH_OLDEST)}"


def _untested(torch_version: str) -> str | None:
    if _version(torch_version) < TORCH_TESTED:
        oldest = _dotted(TORCH_TESTED)
        return f"torch {torch_version} is measured only; from {oldest} on it is tuned"
    if sys.version_info[:2] < PYTHON_TESTED:
        found = _dotted(sys.version_info[:2])
        return f"Python {found} is measured only; from {_dotted(PYTHON_TESTED)} on it is tuned"
    return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
