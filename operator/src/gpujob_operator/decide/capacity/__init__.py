"""What the cluster has, and what is held of it."""
