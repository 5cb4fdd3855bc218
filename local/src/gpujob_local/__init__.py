"""A real Kubernetes control plane on a laptop, with processes as nodes and CPU cards as GPUs."""
