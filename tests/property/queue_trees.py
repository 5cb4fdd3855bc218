"""Any trees of queues, small ones."""

from typing import Any

from hypothesis import strategies as st

from gpujob_api.gpuqueue import GPUQueue
from tests.harness.builders import make_queue

NAMES = ("a", "b", "c", "d", "e")


@st.composite
def trees(draw: st.DrawFn) -> tuple[GPUQueue, ...]:
    """Up to five queues with any parents: missing ones and circles as well."""
    names = NAMES[: draw(st.integers(2, 5))]
    found: list[GPUQueue] = []
    for name in names:
        # Of the queues before it mostly: those are no circles.
        before = names[: names.index(name)]
        others = [one for one in names if one != name]
        usual = st.sampled_from(("", *before, *before))
        parent = draw(usual | usual | usual | st.sampled_from([*others, "gone"]))
        nominal = draw(st.none() | st.integers(0, 4))
        borrow = draw(st.none() | st.integers(0, 3))
        quota: dict[str, Any] = {} if nominal is None else {"gpus": nominal}
        found.append(make_queue(name, parent=parent, borrow=borrow, **quota))
    return tuple(found)
