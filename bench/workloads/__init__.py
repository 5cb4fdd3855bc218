"""Training scripts as people write them: plain PyTorch, float32, eager, the default data loader.

Each runs by itself (`python bench/workloads/gpt2.py --size small --steps 20`), on the GPU if there
is one. They make their own data, and nothing in them knows of GPUJob.
"""
