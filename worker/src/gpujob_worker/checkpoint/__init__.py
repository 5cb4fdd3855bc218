"""Checkpoints that verify: a tree of values as safetensors and JSON, committed by a manifest."""
