"""kubectl gpujob: explains, reports on and simulates GPUJobs. Read-only."""
