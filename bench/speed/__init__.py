"""The ways in which a workload is trained side by side, and what is said about each."""
