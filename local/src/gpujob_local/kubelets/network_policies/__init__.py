"""NetworkPolicies on a node of a local cluster: what they allow, as rules of its own iptables."""
