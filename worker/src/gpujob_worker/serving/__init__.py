"""Serves a model over HTTP: batches of requests, within a latency objective."""
