"""Chooses how a model is executed: every candidate is compared with the model as written first, and
timed only if its answers are close.
"""
