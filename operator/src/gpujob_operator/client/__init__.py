"""The Kubernetes client: requests, lists in pages, watch streams, retries and typed errors."""
