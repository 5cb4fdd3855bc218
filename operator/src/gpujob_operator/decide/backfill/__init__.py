"""When a job that waits could start, and who may use those GPUs until then."""
