"""Counts the files and functions that one thing passes through: `python -m tests.walks`."""
