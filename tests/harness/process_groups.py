"""A process group that exchanges nothing, for one process of several."""

from collections.abc import Generator
from contextlib import contextmanager

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def one_of(size: int) -> Generator[None]:
    """This process is one of so many; what it gathers from the others is not looked at."""
    dist.init_process_group("fake", rank=1, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
