"""Pure rendering: items of a plan become the objects and patches to write."""
