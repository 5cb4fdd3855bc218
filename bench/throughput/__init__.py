"""What a job costs from `kubectl apply` to its end, on a real control plane."""
