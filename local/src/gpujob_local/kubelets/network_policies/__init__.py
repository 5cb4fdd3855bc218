"""NetworkPolicies on a node of a local cluster, as rules of its own iptables."""
