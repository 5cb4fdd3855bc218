"""Placement as numbers alone: arrays in, a row and its columns out."""
