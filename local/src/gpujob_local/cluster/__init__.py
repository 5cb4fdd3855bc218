"""Local clusters: a control plane, nodes, agents and the operator, owned by one process."""
