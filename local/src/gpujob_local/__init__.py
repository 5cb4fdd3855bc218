"""A real Kubernetes control plane on a laptop, with nodes that are processes and cards of CPU."""
