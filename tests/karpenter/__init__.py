"""Karpenter on a real control plane with played nodes: what it does to the nodes of workers."""
