"""The node agent: reads the cards through NVML and publishes them as GPUNode status."""
