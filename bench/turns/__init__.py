"""Times unmodified programs side by side on a busy machine: processes that take turns.

Every program runs in a process of its own, exactly as a user starts it. A hook after its
optimizer's step (put in by `started/sitecustomize.py`, which Python loads by itself) lets it run a
block of steps when it is its turn; all others are stopped meanwhile, with their helpers. So
whatever else the machine does falls on all alike, and blocks of one round can be compared in pairs.
"""
