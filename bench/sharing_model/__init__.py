"""Which jobs may share a GPU, told from what each does alone: richer than the product's rule."""
