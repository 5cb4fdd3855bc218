"""The outermost trained module, and everything that is applied around its call.

Torch itself (`Module.compile`) replaces a module's call by `_compiled_call_impl`. `__call__` uses
it. pickle and deepcopy drop it, so copies of a model stay unchanged.
"""

import weakref
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from gpujob_worker.inject.call_inputs import CallInputs, differentiable_leaves, map_tensors
from gpujob_worker.inject.call_settings import CallSetting, around, switch
from gpujob_worker.inject.compilations import Compilations
from gpujob_worker.inject.compiling import CompiledBlocks
from gpujob_worker.inject.ddp import compiled_as_one, is_redirected, number_of
from gpujob_worker.inject.float32_tail import as_float32
from gpujob_worker.inject.functional import (
    called_with_other_parameters,
    is_traced,
    transforms,
)
from gpujob_worker.inject.grad_scaling import LossScale, scaled_call
from gpujob_worker.inject.guards import is_fully_sharded
from gpujob_worker.inject.microbatch import NotSplittableError, chunked_call
from gpujob_worker.inject.offload import activations_on_host
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.shapes import SeenShapes, Signature, of_any_size
from gpujob_worker.inject.surroundings import Surroundings
from gpujob_worker.run.failure import is_out_of_memory

SIGNATURES_MAX = 16

Kind = TypeVar("Kind", bound=CallSetting)


@dataclass(frozen=True, slots=True)
class RootPlan:
    """How the root's call is made. With everything off, it is the script's own call."""

    autocast: torch.dtype | None = None
    rows_per_step: int | None = None
    # A split keeps the graph of its last chunk from forward to backward, so that less is computed
    # twice.
    keeps_chunk: bool = True
    compiled: Callable[..., Any] | None = None
    compiled_blocks: CompiledBlocks | None = None
    compiled_signature: Signature | None = None
    # The compiled code is for batches of all sizes, not only for that of the signature.
    any_size: bool = False
    compilations: Compilations | None = None
    cuda_graphs: bool = False
    settings: tuple[CallSetting, ...] = ()
    loss_scale: LossScale | None = None
    activations_on_host: bool = False

    @property
    def compiles(self) -> bool:
        return self.compiled is not None or self.compiled_blocks is not None

    def is_compiled_for(self, inputs: CallInputs) -> bool:
        """Returns whether the code was compiled for this shape. Other shapes, such as a smaller
        last batch, run eagerly, because a compilation costs more.
        """
        known = self.compiled_signature
        if not self.compiles or known is None:
            return False
        own = inputs.signature
        return own == known or (self.any_size and of_any_size(own) == of_any_size(known))

    def not_compiled(self) -> "RootPlan":
        return replace(
            self,
            compiled=None,
            compiled_blocks=None,
            compiled_signature=None,
            any_size=False,
            compilations=None,
            cuda_graphs=False,
        )

    def setting(self, kind: type[Kind]) -> Kind | None:
        """Returns the setting of this type, or None."""
        return next((setting for setting in self.settings if isinstance(setting, kind)), None)

    def having(self, setting: CallSetting) -> "RootPlan":
        """Returns the plan with this setting in place of another of its type."""
        return replace(self, settings=(*self.without(type(setting)).settings, setting))

    def without(self, kind: type[CallSetting]) -> "RootPlan":
        kept = tuple(setting for setting in self.settings if not isinstance(setting, kind))
        return replace(self, settings=kept)

    def memory_only(self) -> "RootPlan":
        """Returns the plan without settings for speed. The rest only changes the order of sums."""
        return RootPlan(
            rows_per_step=self.rows_per_step,
            keeps_chunk=self.keeps_chunk,
            activations_on_host=self.activations_on_host,
        )

    def arithmetic(self) -> "RootPlan":
        """Returns the settings that change digits.

        A split and compiled code compute the same as the whole and eager code, except for the order
        of sums.
        """
        return RootPlan(autocast=self.autocast, settings=self.settings)

    def without_split(self) -> "RootPlan":
        return replace(self, rows_per_step=None, keeps_chunk=True)


_PLAIN = RootPlan()
_GONE = torch.nn.Module()
# Called with the inputs of a call. Returns whether that call is made as written, and a function
# that is called with its output. Returns None if there is nothing to check.
Check = Callable[[CallInputs], tuple[bool, Callable[[Any], None]] | None]


class Root:
    """Replaces the root module's call."""

    def __init__(
        self,
        module: torch.nn.Module,
        before_call: Callable[["Root"], None],
        wrapper: torch.nn.Module | None = None,
        *,
        asks: bool = True,
    ) -> None:
        """`before_call` is called before the first call if `asks`.

        `wrapper` is a module whose call contains this module's call.
        """
        self._module: Callable[[], torch.nn.Module | None] = lambda: module
        self.evaluates = not module.training  # no call of it was in training mode
        self.wrapper = wrapper
        self._plan = self.running = _PLAIN
        # The plan with which a failed call is repeated, or None if it would be the same.
        self._fallback: RootPlan | None = None
        self.signatures: set[Signature] = set()
        self.shapes = SeenShapes()
        self.rows: int | None = None
        self.calls = self.rows_called = 0  # in the first step
        self.recording = False
        self.recorded: RecordedCall | None = None
        self.user_autocast = False
        self._before_call = before_call
        self.asks = asks  # before the next call
        # Called after a call that failed under the plan and not without it.
        self._failed: Callable[[Exception], None] = lambda _: None
        self.seen: Callable[[Any], None] | None = None  # called with the outputs of the next calls
        self.check: Check | None = None
        self.inside = False
        self.called = True  # since `expect_call`; a model that is over is not called any more
        self.settled = False  # no discovery watches the calls inside any more

    def __reduce__(self) -> tuple[Any, ...]:
        # A module that copies its own attributes copies this object too. Its copies stay plain.
        return type(None), ()

    @property
    def module(self) -> torch.nn.Module:
        """The module, or an empty one once it is released and the script has dropped it."""
        module = self._module()
        # A module's truth may be its length, which a compiled module cannot have.
        return _GONE if module is None else module

    @property
    def number(self) -> int | None:
        """The wrapper's number, the same in all processes that decide together; None without a
        numbered wrapper.
        """
        return number_of(self.wrapper, self.module)

    def samples(self, losses: int) -> int | None:
        """Returns the samples of the first step, which had `losses` backward passes.

        If each call had one, gradients were accumulated over that many batches. Otherwise all calls
        are of one batch.
        """
        return self.rows_called if losses == self.calls else self.rows

    @property
    def calls_as_large(self) -> float:
        """The size of the first step's calls together, in calls as large as the last one; 1 if they
        were not counted, as those of a model that only answers.
        """
        return self.rows_called / self.rows if self.rows and self.rows_called else 1.0

    def ask_before_next_call(self, asks: bool = True) -> None:
        """Sets whether `before_call` is called, with the recorded call, before the next call."""
        self.asks = asks

    def expect_call(self) -> None:
        """Sets `called` to False until the next call."""
        self.called = False

    def check_next_call(self, check: Check) -> None:
        self.check = check

    def show_outputs(self, seen: Callable[[Any], None] | None) -> None:
        """Calls `seen` with the outputs of the next calls. None ends that."""
        self.seen = seen

    def settle(self, settled: bool = True) -> None:
        """Marks the root as settled. If nothing watches it, a call costs next to nothing."""
        self.settled = settled

    def record(self) -> None:
        """Records the largest of the next calls."""
        self.recording = True

    def forget_call(self) -> None:
        """Drops the recorded call."""
        self.recording, self.recorded = False, None

    def let_go(self) -> None:
        """Leaves the script with the only reference to the module."""
        self._module = weakref.ref(self.module)

    def stop_recording(self) -> None:
        """Keeps the recorded call and records no other one."""
        self.recording = False
        if self.recorded is not None:
            self.recorded.forget_hooks()

    @property
    def plan(self) -> RootPlan:
        return self._plan

    @plan.setter
    def plan(self, plan: RootPlan) -> None:
        switch(self._plan.settings, plan.settings)
        self._plan = _PLAIN if plan == _PLAIN else plan
        plain = plan.memory_only()
        self._fallback = plain if plain != plan else None

    @property
    def device(self) -> torch.device:
        parameter = next(self.module.parameters(), None)
        return parameter.device if parameter is not None else torch.device("cpu")

    def install(self, failed: Callable[[Exception], None] = lambda _: None) -> None:
        """Replaces the module's call.

        `failed` is called after a call that failed under the plan and not without it.
        """
        self._failed = failed
        # Wrappers such as Lightning Fabric's forward assignments to the module inside.
        vars(self.module)["_compiled_call_impl"] = self

    def remove(self) -> None:
        if vars(self.module).get("_compiled_call_impl") is self:
            vars(self.module).pop("_compiled_call_impl")

    def release(self) -> None:
        """Drops all references to the script's objects."""
        self.remove()
        self.recorded = self.wrapper = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.called = True
        if self._is_left_alone:
            return self.module._call_impl(*args, **kwargs)  # pyright: ignore[reportPrivateUsage]
        if self.inside or self._is_step or transforms() or is_traced(args, kwargs):
            return self.module._call_impl(*args, **kwargs)  # pyright: ignore[reportPrivateUsage]
        self.evaluates = self.evaluates and not self.module.training
        if not (torch.is_grad_enabled() and (self.module.training or self.evaluates)):
            return self._call_without_gradients(args, kwargs)
        self.inside = True
        try:
            inputs = CallInputs.of(args, kwargs)
            self.rows = inputs.rows
            self.calls += 1
            self.rows_called += inputs.rows or 0
            if not self.settled and len(self.signatures) < SIGNATURES_MAX:
                self.signatures.add(inputs.signature)
            if self.shapes.watches:
                self.shapes.saw(inputs)
            self.user_autocast = torch.is_autocast_enabled(self.device.type)
            asks, self.asks = self.asks, False
            records = asks or (self.recording and self._is_largest(inputs))
            if records:
                self._record(inputs)
            if asks:
                self._before_call(self)
                # A batch that is kept without need would count as the script's own memory.
                self.recorded = self.recorded if self.recording else None
            output = self._call_and_check(inputs)
            if records and self.recording:
                self._record_gradients(output)
            if self.seen is not None:
                self.seen(output)
            return output
        finally:
            self.inside = False

    @property
    def _is_left_alone(self) -> bool:
        watched = self.recording or self.asks or self.shapes.watches
        return self.settled and not watched and self._plan is _PLAIN

    @property
    def _is_step(self) -> bool:
        """True if the call is a Lightning training step, in which the module is called again."""
        return self.wrapper is not None and is_redirected(self.module)

    def _is_largest(self, inputs: CallInputs) -> bool:
        """Returns whether the call is the largest of a step. Others may have a few samples of
        another kind.
        """
        known = self.recorded.inputs.rows if self.recorded is not None else None
        return known is None or (inputs.rows or 0) >= known

    def _record(self, inputs: CallInputs) -> None:
        if self.recorded is not None:
            self.recorded.forget_hooks()
        self.recorded = RecordedCall(
            inputs.detached(),
            refusal=called_with_other_parameters(),
            whole_only=not inputs.divisible,
            surroundings=Surroundings.now(self.device.type),
        )

    def _call_and_check(self, inputs: CallInputs) -> Any:
        check, self.check = self.check, None
        found = check(inputs) if check is not None else None
        if found is None:
            return self._run_or_fall_back(inputs, self._plan)
        as_written, watch = found
        plan = self._plan.memory_only() if as_written else self._plan
        output = self._run_or_fall_back(inputs, plan)
        watch(output)
        return output

    def _call_without_gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Makes a call without gradients under the same arithmetic if the model is in training
        mode.

        A script may compare such a call to one with gradients, as probabilities before and after an
        update. An evaluation runs as written.
        """
        plan = self._plan.arithmetic()
        if plan == _PLAIN or not self.module.training:
            return self.module._call_impl(*args, **kwargs)  # pyright: ignore[reportPrivateUsage]
        self.inside = True
        try:
            return self._run_or_fall_back(CallInputs.of(args, kwargs), plan)
        finally:
            self.inside = False

    def _run_or_fall_back(self, inputs: CallInputs, plan: RootPlan) -> Any:
        """Runs the call, and repeats it without the plan if it fails.

        The script may take a path that no probe saw.
        """
        plain = self._fallback
        if plain is None:
            return self.run(plan, inputs)
        try:
            return self.run(plan, inputs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if is_fully_sharded(self.module):
                # A repeated call would gather what no other process gathers.
                self._failed(error)
                raise
            failure = error.with_traceback(None)
        # The call is repeated outside the handler, so that an error of the script comes out without
        # a context.
        output = self.run(plain, inputs)
        self._failed(failure)
        return output

    def run(self, plan: RootPlan, inputs: CallInputs) -> Any:
        """Makes one call under `plan`, as `__call__` and probes do."""
        scale = plan.loss_scale
        if scale is None:
            return self._in_chunks(plan, inputs)
        return scaled_call(lambda inner: self._in_chunks(plan, inner), self.module, inputs, scale)

    def _in_chunks(self, plan: RootPlan, inputs: CallInputs) -> Any:
        def single(*args: Any, **kwargs: Any) -> Any:
            return self._single(plan, CallInputs.of(args, kwargs))

        rows = inputs.rows
        if plan.rows_per_step is None or rows is None or rows <= plan.rows_per_step:
            return self._single(plan, inputs)
        try:
            return chunked_call(
                single, self.module, inputs, plan.rows_per_step, keeps_chunk=plan.keeps_chunk
            )
        except NotSplittableError:
            return self._single(plan, inputs)

    def _single(self, plan: RootPlan, inputs: CallInputs) -> Any:
        function: Callable[..., Any] = self.module._call_impl  # pyright: ignore[reportPrivateUsage]
        fits = plan.is_compiled_for(inputs)
        if fits and plan.compiled is not None:
            function = plan.compiled
        settings = [setting for setting in plan.settings if setting.fits(inputs)]
        with ExitStack() as stack:
            stack.enter_context(self._running(plan))
            stack.enter_context(around(settings))
            if plan.activations_on_host:
                stack.enter_context(activations_on_host(self.module))
            if fits and plan.compiled_blocks is not None:
                stack.enter_context(plan.compiled_blocks.in_force())
            if fits:
                stack.enter_context(compiled_as_one(self.wrapper))
            if plan.autocast is not None:
                stack.enter_context(torch.autocast(self.device.type, dtype=plan.autocast))
            for setting in settings:
                inputs = setting.before(inputs)
            output = inputs.call(function)
        if fits and plan.cuda_graphs:
            # The next replay overwrites this one's outputs.
            output = map_tensors(torch.clone, output)
        if plan.autocast is not None:
            # The script's loss continues in the type for which it was written.
            output = map_tensors(as_float32, output)
        for setting in reversed(settings):
            output = setting.after(output)
        return output

    @contextmanager
    def _running(self, plan: RootPlan) -> Generator[None]:
        before, self.running = self.running, plan
        try:
            yield
        finally:
            self.running = before

    def _record_gradients(self, output: Any) -> None:
        recorded = self.recorded
        assert recorded is not None
        leaves = differentiable_leaves(output)
        recorded.output_gradients = [None] * len(leaves)

        def keep(index: int) -> Callable[[torch.Tensor | None], None]:
            # The gradient is None from a function that leaves out unused outputs, such as the one
            # of DistributedDataParallel that looks for unused parameters.
            def hook(gradient: torch.Tensor | None) -> None:
                if gradient is not None:
                    recorded.output_gradients[index] = gradient.detach()

            return hook

        for index, leaf in enumerate(leaves):
            recorded.handles.append(leaf.register_hook(keep(index)))


def absent_root() -> Root:
    """Returns a root that stands in if there is no module of the script."""
    return Root(torch.nn.Module(), lambda _: None, asks=False)


def hide_from_script_compiler() -> None:
    """Hides our attribute from `torch.jit.script`, which reads every attribute of a module."""
    names: list[str] = torch.jit._recursive.ignored_attributes  # pyright: ignore
    if "_compiled_call_impl" not in names:
        names.append("_compiled_call_impl")
