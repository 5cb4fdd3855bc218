"""The node agent: reads the GPUs through NVML and publishes them as GPUNode status."""
