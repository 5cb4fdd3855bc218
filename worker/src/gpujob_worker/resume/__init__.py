"""Exact resume: of a `Job`, of plain scripts with all their variables, and of trainers.

`checkpointer` saves and brings back; `unmodified` chooses the way for a script that was not written
for it.
"""
