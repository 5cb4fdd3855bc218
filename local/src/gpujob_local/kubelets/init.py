"""The first process of a node: `init.py [SOURCE:TARGET ...]`, started in its own namespaces.

It mounts the node's own folders over the machine's, turns the node's network on, prints `ready`,
and then only waits for processes that lost their parent. When it ends, the kernel kills every
process of its process namespace, as if the node were switched off. Run with `-I -S`, so it imports
little.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

READY = "ready"


def main(bindings: Sequence[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    # Traffic from pod to pod over a node's bridge passes its iptables too.
    with contextlib.suppress(FileNotFoundError):
        Path("/proc/sys/net/bridge/bridge-nf-call-iptables").write_text("1")
    for binding in bindings:
        source, _, target = binding.partition(":")
        subprocess.run(["mount", "--bind", source, target], check=True)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        signal.sigwait({signal.SIGCHLD})


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
