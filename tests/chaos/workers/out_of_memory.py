"""The first attempt asks torch for more memory than any machine has; later ones are content."""

import os

import torch

if os.environ["GPUJOB_ATTEMPT"] == "1":
    torch.empty(2**60, dtype=torch.uint8)
