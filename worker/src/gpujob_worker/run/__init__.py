"""One run of a script: its environment, its measurements and reports, and its end."""
