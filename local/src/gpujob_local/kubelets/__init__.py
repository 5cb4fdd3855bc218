"""Real kubelets on this machine, with containerd, runc and kube-proxy, each in namespaces."""
