"""Process nodes: what a kubelet does, with local processes in place of containers."""
