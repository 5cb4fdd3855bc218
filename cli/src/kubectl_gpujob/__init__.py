"""kubectl gpujob: why a job waits, what was gained for it, what would be if. Only reads."""
