"""Changes to a running script, one module for each."""
