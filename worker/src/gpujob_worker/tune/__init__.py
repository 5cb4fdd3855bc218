"""Choices by measurement: probes without side effects, paired comparisons, the settings and the
tuner.
"""
