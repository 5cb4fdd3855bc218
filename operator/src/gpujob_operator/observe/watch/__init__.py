"""List-and-watch of pods, nodes and volumes, and the lists of every kind, into the cache."""
