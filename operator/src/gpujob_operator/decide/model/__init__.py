"""The vocabulary of the decisions: what goes in, what comes out, and its words."""
