"""Chooses settings by measurement: probes without side effects, paired comparisons, the settings
themselves, and the tuner.
"""
