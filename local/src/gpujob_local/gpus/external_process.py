"""An unmanaged process that takes memory on a card: `external_process.py BYTES`.

It is bound like any process, by NVIDIA_VISIBLE_DEVICES, but belongs to no pod. It touches every
page, so the memory is really in use, prints `ready`, and then waits to be ended.
"""

import signal
import sys


def main(amount_bytes: int) -> int:
    # Repeating a byte other than 0 writes every page; bytearray(n) would leave them untouched.
    block = bytearray(b"\x01") * amount_bytes
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.pause()
    return len(block) - amount_bytes


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
