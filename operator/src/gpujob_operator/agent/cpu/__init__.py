"""CPU cards: one CPU core and a slice of memory each, standing in for GPUs, and measured."""
