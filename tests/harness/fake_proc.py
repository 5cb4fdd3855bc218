"""A made-up /proc and /sys: processes with cgroups and memory, PCI devices, a node's memory."""

from pathlib import Path

TICKS_PER_SECOND = 100
MIB = 1024**2


class FakeProc:
    """Processes appear and change by `put`; every file is one that any user may read."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.sysfs = folder / "sys"
        self.proc.mkdir()
        self.sysfs.mkdir()

    def put(
        self,
        pid: int,
        *,
        cgroup: str = "0::/init.scope",
        parent: int = 1,
        cpu_ticks: int = 0,
        memory_bytes: int = 10 * MIB,
        started: int = 100,
        command: str = "python\0train.py\0",
    ) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        # From the third field on; 14 and 15 are the processor times, 22 is the start.
        fields = ["S", str(parent), *["0"] * 9, str(cpu_ticks), "0", *["0"] * 6, str(started)]
        (folder / "stat").write_text(f"{pid} (a (strange) name) {' '.join(fields)} 0 0\n")
        kib = memory_bytes // 1024
        (folder / "status").write_text(
            f"Name:\tpython\nVmRSS:\t{kib + 5000} kB\nRssAnon:\t{kib} kB\nRssFile:\t5000 kB\n"
            "RssShmem:\t0 kB\n"
        )
        (folder / "cmdline").write_text(command)
        (folder / "cgroup").write_text(f"{cgroup}\n")

    def end(self, pid: int) -> None:
        for path in (self.proc / str(pid)).iterdir():
            path.unlink()
        (self.proc / str(pid)).rmdir()

    def put_memory(self, total_bytes: int) -> None:
        (self.proc / "meminfo").write_text(f"MemTotal: {total_bytes // 1024} kB\nMemFree: 1 kB\n")

    def put_pci_device(self, address: str, *, vendor: str, kind: str) -> None:
        folder = self.sysfs / "bus" / "pci" / "devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")

    def put_driver(self, *addresses: str) -> None:
        """As NVIDIA's driver shows its GPUs in /proc."""
        for address in addresses:
            (self.proc / "driver" / "nvidia" / "gpus" / address).mkdir(parents=True)
