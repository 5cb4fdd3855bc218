"""One job's own state machine, and the status that is written of it."""
