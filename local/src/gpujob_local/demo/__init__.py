"""`make demo`: a story on a local cluster that checks its own claims and fails when one does not hold."""
