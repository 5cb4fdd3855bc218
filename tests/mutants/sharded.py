"""Mutants of how processes that train together try a sharded module, and parts of a wrapped one."""

from tests.mutants.mutant import WORKER, Mutant

_CONSENSUS = "tests/worker/control/test_consensus.py"
_COPY = "tests/worker/inject/test_unsharded.py"
_PARTS = "tests/worker/control/test_parts_together.py"


def _of(name: str, path: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(name, f"{WORKER}/{path}", old, new, (test,))


SHARDED = (
    _of(
        "one yes is enough for all to gather",
        "control/consensus.py",
        "            decision = _YES if everyone == {_YES} else _NO\n",
        "            decision = _YES if _YES in everyone else _NO\n",
        _CONSENSUS,
    ),
    _of(
        "a process that was asked gathers whatever was decided",
        "control/consensus.py",
        '        return self._store.compare_set(key, "", decision).decode() == _YES\n',
        '        return self._store.compare_set(key, "", decision).decode() == _YES or yes\n',
        _CONSENSUS,
    ),
    _of(
        "a look is due at the check that plans it",
        "control/consensus.py",
        '        return self._due(f"look/{number}", at) is not None\n',
        '        return self._due(f"look/{number}", at + 1) is not None\n',
        _CONSENSUS,
    ),
    _of(
        "a copy that is tried may gather",
        "inject/unsharded.py",
        "        raise ReachedError(_REACHED)\n",
        "        return\n",
        _COPY,
    ),
    _of(
        "a copy keeps what sharding hooked on",
        "inject/unsharded.py",
        "        if not of.startswith(_OF_SHARDING):\n",
        "        if of:\n",
        _COPY,
    ),
    _of(
        "a module that casts itself is tried",
        "inject/unsharded.py",
        "        if policy.param_dtype is not None or policy.output_dtype is not None:\n",
        "        if policy.output_dtype is not None:\n",
        _COPY,
    ),
    _of(
        "a module of some processes is gathered by all",
        "inject/unsharded.py",
        "        if mesh.size() != processes:\n",
        "        if mesh.size() > processes:\n",
        _COPY,
    ),
    _of(
        "the last layer of the copy is kept in float32, and not the module's",
        "control/sharded_tuning.py",
        "    return plan.having(replace(tail, layer=weakref.ref(layer)))\n",
        "    return plan\n",
        _COPY,
    ),
    _of(
        "parts of a wrapper share its number",
        "inject/ddp.py",
        "    return number + _WRAPPERS_MAX * place\n",
        "    return number\n",
        _PARTS,
    ),
    _of(
        "a part may be called past its wrapper",
        "inject/ddp.py",
        "    return is_wrapped(module) and wrapper_in_step(module) is None\n",
        "    return False\n",
        _PARTS,
    ),
    _of(
        "a whole training step is tried",
        "inject/wrapped_module.py",
        "        return self.wrapper is not None and is_redirected(self.module)\n",
        "        return False\n",
        _PARTS,
    ),
    _of(
        "what learns around a wrapper is passed over",
        "inject/ddp.py",
        "    return all(id(p) in theirs for p in module.parameters() if p.requires_grad)\n",
        "    return bool(theirs)\n",
        _PARTS,
    ),
)
