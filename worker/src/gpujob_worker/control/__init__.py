"""Decides when and where settings are applied in one run, and when they are rolled back."""
