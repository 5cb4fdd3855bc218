"""Public training scripts, run unmodified with and without the worker; none is kept here."""
