"""kopf edges: put the event into the cache, mark it dirty, nothing else."""
