"""Where a job's workers go, and why not elsewhere."""
