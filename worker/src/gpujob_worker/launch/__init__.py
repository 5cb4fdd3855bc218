"""Starts the script as the interpreter would, and hooks into its imports."""
