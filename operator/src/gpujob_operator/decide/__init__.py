"""The decisions of a cycle, all of them pure: `plan(snapshot, now)` returns what to write.

No package here reads a clock, does I/O or draws a random number. `planner` joins the packages.
`pyproject.toml` orders them in layers, and each imports only from the layers below its own.
"""
