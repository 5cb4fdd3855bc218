"""Memory, energy and contexts of the training's device."""
