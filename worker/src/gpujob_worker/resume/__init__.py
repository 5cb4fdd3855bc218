"""The small interface: exact resumption, and an exact split of any loss."""
