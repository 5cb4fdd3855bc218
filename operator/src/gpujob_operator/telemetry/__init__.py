"""What the operator publishes about itself: logs, metrics, gauges, signs of life and health."""
