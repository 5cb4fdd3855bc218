"""An unmanaged process that takes memory on a card or a GPU: `external_process.py BYTES`.

It is bound like any process, by NVIDIA_VISIBLE_DEVICES, but belongs to no pod. It touches every
page, so the memory is really in use, prints `ready`, and then waits to be ended.
"""

import os
import signal
import sys

from gpujob_local.gpus.driver import CUDA_DEVICES


def main(amount_bytes: int) -> int:
    block = _on_gpu(amount_bytes) if os.environ.get(CUDA_DEVICES) else _on_card(amount_bytes)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.pause()
    del block
    return 0


def _on_card(amount_bytes: int) -> object:
    # Repeating a byte other than 0 writes every page; bytearray(n) would leave them untouched.
    return bytearray(b"\x01") * amount_bytes


def _on_gpu(amount_bytes: int) -> object:
    # Imported here, because a local cluster without GPUs needs no torch.
    import torch

    block = torch.ones(amount_bytes, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return block


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
