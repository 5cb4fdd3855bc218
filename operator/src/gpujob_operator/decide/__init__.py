"""Pure decisions: `plan(snapshot, now)` says what to write. No clock, no I/O, no randomness."""
