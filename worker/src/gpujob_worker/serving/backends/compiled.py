"""The model through `torch.compile`, at fixed sizes that are all compiled before the first request.

One graph serves all sizes from 2 up, because a graph a size takes minutes to compile. CUDA graphs
have fixed shapes, so each size gets its own.
"""

from typing import Any

import torch

from gpujob_api.serving import BackendName
from gpujob_api.settings import Precision
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.backends.answering import Answering, device_of
from gpujob_worker.serving.backends.torch_backend import TorchBackend
from gpujob_worker.serving.rows import first_rows
from gpujob_worker.serving.signature import Signature

# Beyond torch's own limit a function silently runs as written.
_GRAPHS_BESIDE_SIZES = 8
_RUNS_A_SIZE = 3


def compiled(
    name: BackendName,
    model: Answering,
    signature: Signature,
    precision: Precision,
    examples: Tensors,
    sizes: tuple[int, ...],
) -> TorchBackend:
    """Returns the compiled model, with every size compiled. Raises what the compiler raises."""
    graphs = name is BackendName.CUDA_GRAPH
    config: Any = torch._dynamo.config  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
    config.recompile_limit = len(sizes) + _GRAPHS_BESIDE_SIZES
    options: dict[str, Any] = {"mode": "reduce-overhead", "dynamic": False} if graphs else {}
    function: Any = torch.compile(model, **options)

    def call(*inputs: torch.Tensor) -> Any:
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        return function(*inputs)

    def first_call(*inputs: torch.Tensor) -> Any:
        for tensor in inputs:
            if not graphs and len(tensor) > 1:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)  # pyright: ignore
        return call(*inputs)

    device, tf32 = device_of(model), precision is Precision.TF32
    first = TorchBackend(name.value, first_call, signature, device, sizes=sizes, tf32=tf32)
    backend = TorchBackend(name.value, call, signature, device, sizes=sizes, tf32=tf32)
    for size in sizes:
        batch = first_rows(examples, size)
        first.run({key: tensor.clone() for key, tensor in batch.items()})
        # CUDA graphs are recorded by the second call and replayed from the third on.
        for _ in range(_RUNS_A_SIZE - 1):
            backend.run(batch)
    return backend
