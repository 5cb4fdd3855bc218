"""The report port: reports of workers and readings of agents, each with its token checked."""
