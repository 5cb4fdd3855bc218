"""Pure rendering: items of a plan to the exact objects and patches that are written."""
