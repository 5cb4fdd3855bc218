"""One pass over the pending jobs: nominate, assume, preempt, tell why."""
