"""An imitated GPU: on the CPU, what a CUDA device does and a CPU does not.

Why a tensor subclass and a patched `torch.cuda`: the worker's own code has to run as it is. It asks
tensors for their device, calls `torch.cuda`, pushes dispatch modes of its own, and takes a dispatch
mode of the script for a tracer. So a device made of a global mode would switch the worker off, and
one of the private-use backend would not be called "cuda". Tensors here lie in host memory, say that
they are on `cuda:0`, and pass each operation through `__torch_dispatch__`, below autograd. For
torch's C++ code they are CPU tensors, because its autograd engine looks for real streams otherwise.

Time is virtual. Host time advances by launches, sleeps and waiting only; device time by the cost of
each kernel. So a step of seconds is tested in milliseconds, with the same figures every time.

Not imitated: more than one device, Triton (and with it `torch.compile`, for which
`compiler` stands in), cuDNN's choice of kernels,
`torch.Generator(device="cuda")`, recurrent layers, nested tensors, parameters that a first call
makes, and the order in which a GPU adds.
"""

import torch

from tests.harness.imitated_gpu.cost import CostModel, Kernel
from tests.harness.imitated_gpu.gpu import GpuModel, ImitatedGpu
from tests.harness.imitated_gpu.install import install, installed

# Products take 20 ms, and half as long in bfloat16.
FAST_HALF = GpuModel(
    cost=CostModel(scripted={"addmm": 0.02, "mm": 0.02}, by_type={torch.bfloat16: 0.5})
)

__all__ = ["FAST_HALF", "CostModel", "GpuModel", "ImitatedGpu", "Kernel", "install", "installed"]
