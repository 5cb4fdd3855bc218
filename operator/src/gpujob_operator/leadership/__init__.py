"""Leading: the Lease, the cluster's clock, the report Service and the first lists of a leader."""
