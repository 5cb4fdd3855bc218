"""What it costs and gains to wait for more requests: `python -m bench.batching`."""
