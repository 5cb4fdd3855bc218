"""How a step is made within a memory limit: models of what it takes, and the choice."""
