"""The story that `make demo` tells on a local cluster, and its claims."""
