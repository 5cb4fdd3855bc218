"""Fixtures for all tests; what needs a cluster is only started when a test asks for it."""

pytest_plugins = ["tests.harness.cluster"]
