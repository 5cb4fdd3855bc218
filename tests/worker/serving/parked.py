"""What tests of parked backends share."""

import torch
from torch import nn

from gpujob_worker.serving.backend import Backend, Parking, Tensors
from gpujob_worker.serving.rows import first_rows


def parking_of(backend: Backend) -> Parking:
    assert backend.parking is not None
    return backend.parking


def held_bytes(model: nn.Module) -> int:
    return sum(one.untyped_storage().nbytes() for one in model.parameters())


def answers_alike(
    backend: Backend, written: nn.Module, inputs: Tensors, sizes: tuple[int, ...]
) -> None:
    """Parks and wakes twice, the second time after batches. The model as written must hold nothing
    meanwhile.
    """
    batches = [first_rows(inputs, size) for size in sizes]
    before = [backend.run(batch) for batch in batches]
    parking, held = parking_of(backend), held_bytes(written)
    assert held > 0
    for _ in range(2):
        assert parking.host_bytes is not None
        assert parking.host_bytes >= held
        parking.park()
        assert held_bytes(written) == 0
        parking.wake()
        for batch, expected in zip(batches, before, strict=True):
            outputs = backend.run(batch)
            assert all(torch.equal(outputs[name], expected[name]) for name in expected)
    assert held_bytes(written) == held
