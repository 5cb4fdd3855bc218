"""The devices of process nodes: CPU cards and GPUs of this machine.

A CPU card is a processor core and a slice of memory, read through NVML's functions.
"""
