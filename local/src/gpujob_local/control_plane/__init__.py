"""The control plane: its binaries, processes, certificates and manifests."""
