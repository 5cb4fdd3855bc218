"""The pages: pure functions from a view of the cluster to the contents of a template."""
