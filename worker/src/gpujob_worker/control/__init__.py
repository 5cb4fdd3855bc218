"""When and where settings are applied in one run, and when they are taken back."""
