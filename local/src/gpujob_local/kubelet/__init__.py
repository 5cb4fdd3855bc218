"""Process nodes, which do the work of a kubelet with local processes in place of containers."""
