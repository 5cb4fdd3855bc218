"""Kinds of training scripts, run with and without the worker: reached, applied, resumed."""
