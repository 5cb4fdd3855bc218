"""Chooses a node and GPUs from numbers alone: arrays in, a row and its columns out.

The package imports nothing else of this project, not even the API's nouns.
"""
