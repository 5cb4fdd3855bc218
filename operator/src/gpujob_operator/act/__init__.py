"""Writing: the items of a plan, with preconditions, idempotent and bounded."""
