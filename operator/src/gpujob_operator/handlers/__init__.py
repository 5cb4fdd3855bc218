"""kopf handlers: put the event into the cache and mark it dirty, nothing else."""
