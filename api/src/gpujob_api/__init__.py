"""The nouns of GPUJob: the objects that the API server stores, and the messages of operator and
worker.

Everything here is a frozen value that cannot be invalid. It is parsed at the edge and trusted
inside. The package depends only on the standard library.
"""
