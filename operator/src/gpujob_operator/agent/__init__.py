"""The node agent: reads GPUs through NVML and publishes the readings as GPUNode status."""
