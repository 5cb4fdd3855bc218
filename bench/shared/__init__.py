"""Jobs that share one GPU: what is played, what is measured, and what is kept of it."""
