"""kubectl gpujob: says in numbers why a job waits and what was gained for it. Only reads."""
