"""Ways to execute a model: as written, in a lower precision, compiled, or exported."""
