"""Observation: watches, worker reports and agent readings become one immutable snapshot."""
