"""What the operator publishes of itself: logs, metrics, gauges, signs of life and health."""
