"""Pure reading: manifests of the API server and configuration files to what decisions see.

The operator's cache and `kubectl gpujob simulate` read the same objects with the same functions.
"""
