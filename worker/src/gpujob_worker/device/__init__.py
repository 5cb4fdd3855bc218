"""Memory, energy and contexts of the device that the training is on."""
