"""Pairs of training jobs measured on one K80, P100 or V100 (Gavel, OSDI'20)."""
