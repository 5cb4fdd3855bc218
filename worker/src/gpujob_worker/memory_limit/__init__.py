"""Decides how a step is made within a memory limit: models of its memory, and the choice."""
