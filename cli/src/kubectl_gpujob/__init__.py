"""kubectl gpujob: submits, follows, explains and simulates GPUJobs, through kubectl."""
