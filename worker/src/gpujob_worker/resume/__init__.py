"""The small interface for exact resumption and for an exact split of any loss."""
