"""Loaded by Python at its start: a process that was told to takes turns with others."""

import os

if "BENCH_TURNS" in os.environ:
    from bench.turns.participant import take_part

    take_part()
