"""Whom to interrupt for another job, and what that costs."""
