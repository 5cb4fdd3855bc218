"""Runs a module without side effects, and compares the results of two runs."""
