"""The operator: observes a cluster, decides in a pure function, and writes what was decided."""
