"""A process that takes memory on a card and belongs to nobody: `stranger.py BYTES`.

It is bound like any process, by NVIDIA_VISIBLE_DEVICES, but to no pod. It touches every page, so
the memory is really in use, prints `ready` and then waits to be ended.
"""

import mmap
import signal
import sys

PAGE_BYTES = 4096


def main(amount_bytes: int) -> int:
    block = mmap.mmap(-1, amount_bytes)
    for offset in range(0, amount_bytes, PAGE_BYTES):
        block[offset] = 1
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.pause()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
