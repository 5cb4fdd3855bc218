"""Passes settings to trainers and frameworks through their own arguments, one module each."""
