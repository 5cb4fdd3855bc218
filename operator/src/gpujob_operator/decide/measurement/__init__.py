"""What is known of a workload from its runs."""
