"""The nouns of GPUJob: what the API server stores and what operator and worker say to each other.

Everything here is a frozen value that cannot hold nonsense; it is parsed at the edge and trusted
inside. The package depends on nothing but the standard library.
"""
