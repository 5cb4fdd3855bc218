"""The model through `torch.compile`, at fixed sizes that are all compiled before the first request.

One graph serves all sizes from 2 up, because a graph a size takes minutes to compile. CUDA graphs
have fixed shapes, so each size gets its own, recorded from the same compiled code.
"""

from typing import Any

import torch

from gpujob_api.serving import BackendName
from gpujob_api.settings import Precision
from gpujob_worker.serving.backend import Parking, Tensors
from gpujob_worker.serving.backends.answering import Answering, device_of
from gpujob_worker.serving.backends.cuda_graphs import CudaRecorder, Graphs, Recorder
from gpujob_worker.serving.backends.together import Rebuilt, Together
from gpujob_worker.serving.backends.torch_backend import Function, TorchBackend
from gpujob_worker.serving.rows import first_rows
from gpujob_worker.serving.signature import Signature
from gpujob_worker.serving.weights import Weights

# Beyond torch's own limit a function silently runs as written.
_GRAPHS_BESIDE_SIZES = 8


def compiled(
    name: BackendName,
    model: Answering,
    signature: Signature,
    precision: Precision,
    examples: Tensors,
    sizes: tuple[int, ...],
    weights: Weights,
    recorder: Recorder | None = None,
) -> TorchBackend:
    """Returns the compiled model, with every size compiled. Raises what the compiler raises.

    `weights` are those of the model, and of the one that it was made of.
    """
    config: Any = torch._dynamo.config  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
    config.recompile_limit = len(sizes) + _GRAPHS_BESIDE_SIZES
    function: Any = torch.compile(model)

    def first_call(*inputs: torch.Tensor) -> Any:
        for tensor in inputs:
            if len(tensor) > 1:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)  # pyright: ignore
        return function(*inputs)

    device, tf32 = device_of(model), precision is Precision.TF32

    def backend_of(call: Function, parking: Parking | None = None) -> TorchBackend:
        return TorchBackend(
            name.value, call, signature, device, sizes=sizes, tf32=tf32, parking=parking
        )

    first, later = backend_of(first_call), backend_of(function, weights)
    for size in sizes:
        batch = first_rows(examples, size)
        first.run({key: tensor.clone() for key, tensor in batch.items()})
        later.run(batch)
    if name is not BackendName.CUDA_GRAPH:
        return later
    graphs = Graphs(function, recorder or CudaRecorder())
    recording = backend_of(graphs.record)
    # The largest first: the others then find their memory in its pool.
    batches = [first_rows(examples, size) for size in sorted(sizes, reverse=True)]

    def record() -> None:
        try:
            for batch in batches:
                recording.run(batch)
        except BaseException:
            graphs.drop()
            raise

    record()
    return backend_of(graphs, Together(Rebuilt(graphs.drop, record), weights))
