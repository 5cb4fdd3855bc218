"""Real kubelets on this machine: a cluster of containerd, runc and kube-proxy, a namespace a node."""
