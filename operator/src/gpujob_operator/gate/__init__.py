"""The gate of a service that may have no replica: holds requests, and forwards them to replicas.

It is a process of its own in front of one service, without rights at the API server. It reports its
requests to the operator, whose replies name the replicas that are ready.
"""
