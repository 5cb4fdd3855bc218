"""Container images without a container engine: layers from packages, OCI archives from layers."""
