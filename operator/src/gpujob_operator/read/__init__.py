"""Pure reading: manifests and configuration files become the objects that decisions read.

The operator's cache and `kubectl gpujob simulate` use the same functions.
"""
