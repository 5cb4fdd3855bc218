"""Mutants of the commit protocol of the worker, and of what it chooses."""

from tests.mutants.mutant import WORKER, Mutant

_STORE = "tests/worker/checkpoint/test_checkpoint_store.py"
_WRITER = "tests/worker/checkpoint/test_background_writer.py"
_UNREADABLE = "tests/worker/checkpoint/test_unreadable_files.py"
_SAME_STEP = "tests/worker/checkpoint/test_same_step.py"
_TREE = "tests/worker/checkpoint/test_tree.py"


def _of(name: str, path: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, f"{WORKER}/checkpoint/{path}", old, new, tests or (_STORE,))


COMMITS = (
    _of(
        "an older attempt may commit",
        "store.py",
        "        if owner > self.attempt:\n",
        "        if owner > self.attempt + 1:\n",
    ),
    _of(
        "the fence is looked at when the store opens, and never again",
        "store.py",
        "            self._check_fence()\n            if not os.path",
        "            if not os.path",
    ),
    _of(
        "an attempt leaves no fence",
        "store.py",
        '            write_durably(directory / "FENCE", text.encode())\n',
        "",
    ),
    _of(
        "a checkpoint that does not verify stays in the way",
        "store.py",
        "            self._quarantine(self._folder(step), step, why)\n",
        "",
    ),
    _of(
        "only the newest checkpoint is kept",
        "store.py",
        "        for step in self.steps()[self.keep :]:",
        "        for step in self.steps()[1:]:",
    ),
    _of(
        "every checkpoint is kept",
        "store.py",
        "        for step in self.steps()[self.keep :]:",
        "        for step in self.steps()[10**6 :]:",
    ),
    _of(
        "half-written checkpoints stay for ever",
        "store.py",
        '        for pattern in (".step-*.tmp-*", ".trash-*"):',
        "        for pattern in ():",
    ),
    _of(
        "a checkpoint says another step than its name",
        "store.py",
        '    if about.get("step") != step:\n',
        "    if about is None:\n",
    ),
    _of(
        "a checkpoint is under its name before it is whole",
        "store.py",
        'f".step-{step}.tmp-{self.attempt}-{name}"',
        'f"step-{step}"',
    ),
    _of(
        "the manifest's own hash is not compared",
        "manifest.py",
        'if not newline or hashlib.sha256(body).hexdigest().encode() + b"\\n" != digest:',
        "if not newline:",
    ),
    _of(
        "a rank's list is not compared with the manifest",
        "manifest.py",
        '    if hashlib.sha256(data).hexdigest() != about["ranks"].get(rank_name(rank)):\n',
        '    if not about["ranks"].get(rank_name(rank)):\n',
    ),
    _of(
        "files are not compared with their hashes",
        "manifest.py",
        "        if read_file(folder / name, _describe) != expected:\n",
        "        if not (folder / name).exists():\n",
    ),
    _of(
        "a link is followed out of the checkpoint",
        "reading.py",
        "            if not stat.S_ISREG(mode):\n",
        "            if stat.S_ISFIFO(mode):\n",
    ),
    _of(
        "what cannot be read is taken for damaged",
        "reading.py",
        "            if error.errno not in _NOT_THERE:\n                raise\n",
        "",
        _UNREADABLE,
    ),
    _of(
        "a read is tried once",
        "reading.py",
        "    waits = iter(WAIT_SECONDS)\n",
        "    waits = iter([0.0] * 0)\n",
        _UNREADABLE,
    ),
    _of(
        "what was set aside without proof is removed",
        "store.py",
        'glob(f"step-*.corrupt-*/{_PROOF}")',
        'glob("step-*.corrupt-*/MANIFEST.json")',
        _UNREADABLE,
    ),
    _of(
        "a step that is whole is written again",
        "store.py",
        '            size = size_of(path) if verify(path).get("step") == step else None\n',
        "            return None\n",
        _SAME_STEP,
    ),
    _of(
        "a damaged step is removed before the new one has its name",
        "store.py",
        "            elif exchange(temporary, target):\n",
        "            elif shutil.rmtree(target) or exchange(temporary, target):\n",
        _SAME_STEP,
    ),
    _of(
        "a conjugate is taken for its tensor",
        "tree.py",
        "        signs = (tensor.is_conj(), tensor.is_neg())\n",
        "        signs = ()\n",
        _TREE,
    ),
    _of(
        "a class from a checkpoint need not be of the expected kind",
        "class_names.py",
        "    if not isinstance(found, type) or not issubclass(found, base):\n",
        "    if found is None:\n",
        _TREE,
    ),
    _of(
        "a small file is written in place",
        "manifest.py",
        '    return path.with_name(f".{path.name}.tmp-{os.getpid()}")\n',
        "    return path\n",
        _STORE,
        _WRITER,
    ),
    _of(
        "a write that was given up is committed",
        "background_writer.py",
        "        if self._cancelled:\n            raise CancelledError",
        "        if self._cancelled:\n            return",
        _WRITER,
    ),
    _of(
        "the error of a write is lost",
        "background_writer.py",
        "            self._written = Written(step, error=error)\n",
        "            self._written = None\n",
        _WRITER,
    ),
    Mutant(
        "a large last layer with many outputs is in bfloat16",
        f"{WORKER}/inject/float32_tail.py",
        "(kind is torch.bfloat16 and _widens(last))",
        "False",
        ("tests/worker/tune/test_what_is_learned.py",),
    ),
    Mutant(
        "copies of the optimizer take 2 GiB at most",
        f"{WORKER}/control/tuning_run.py",
        "return max(COPIES_BYTES, self._session.state.baseline_peak_bytes - held)",
        "return COPIES_BYTES",
        ("tests/worker/tune/test_unusual_calls.py",),
    ),
    Mutant(
        "blocks that are slower are compiled where compilation is asked for",
        f"{WORKER}/tune/compile_choice.py",
        "forced = forced and not (if_faster and found.high < 1.0)",
        "del if_faster",
        ("tests/worker/inject/test_compiling.py",),
    ),
    Mutant(
        "the first steps count where nothing was changed",
        f"{WORKER}/run/run_state.py",
        "return self.current or self.baseline if self.leaves_steps else self.baseline",
        "return self.baseline",
        ("tests/worker/run/test_run_state.py",),
    ),
    Mutant(
        "a step takes as long as the host's clock says",
        f"{WORKER}/run/meter.py",
        "        if self._launched is not None:\n"
        "            self._launched.step_done(self.window)\n",
        "        if self._launched is not None and self._last is None:\n"
        "            self._launched.step_done(self.window)\n",
        ("tests/worker/run/test_gpu_steps.py::test_steps_take_the_devices_time",),
    ),
    Mutant(
        "numbers are compared with what dropout leaves of them",
        f"{WORKER}/tune/probe.py",
        "        with without_dropout():\n",
        "        if without_dropout:\n",
        ("tests/worker/tune/test_gpu_numbers.py",),
    ),
    Mutant(
        "compiled code is compared with the random numbers that the compiler draws",
        f"{WORKER}/tune/compile_choice.py",
        "        alike = plan_with(True) if draws else plan\n",
        "        alike = plan\n",
        (
            "tests/worker/inject/test_compiling.py"
            "::test_a_model_that_drops_is_compared_with_the_same_draws",
        ),
    ),
    Mutant(
        "batches stay pinned where steps are no shorter with it",
        f"{WORKER}/tune/pinned_memory.py",
        "        if seconds * SHORTER_NEEDED > self._without:\n",
        "        if seconds * SHORTER_NEEDED < 0.0:\n",
        ("tests/worker/tune/test_gpu_pinned_memory.py",),
    ),
    Mutant(
        "the next run begins with a kernel whose numbers disagreed for one optimizer",
        f"{WORKER}/tune/tuner.py",
        "self.applied.fused_here_only = chosen and self._unproven",
        "self.applied.fused_here_only = False",
        ("tests/worker/tune/test_several_optimizers.py",),
    ),
    Mutant(
        "loader workers that do not keep up are not made more",
        f"{WORKER}/tune/loader_trial.py",
        "TRIALS_MAX = 2\n",
        "TRIALS_MAX = 1\n",
        ("tests/worker/inject/test_loader_trials.py",),
    ),
    Mutant(
        "the last number of loader workers that was tried stays, however slow",
        f"{WORKER}/tune/loader_trial.py",
        "return min(self._tried, key=lambda verdict: verdict.after.seconds)",
        "return self._tried[-1]",
        ("tests/worker/inject/test_loader_trials.py",),
    ),
)
