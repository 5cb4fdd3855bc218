"""Reading: watch caches, worker reports and agent readings become one immutable snapshot."""
