"""The demo on a local cluster (`make demo`), and its claims."""
