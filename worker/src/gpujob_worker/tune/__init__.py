"""Measured choices: probes that leave no trace, paired comparisons, the memory model, the tuner."""
