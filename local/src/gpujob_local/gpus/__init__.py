"""CPU cards: a processor core and a slice of memory each, read through NVML's functions. And the
GPUs of this machine.
"""
