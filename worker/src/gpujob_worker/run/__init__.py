"""One run of a script: its environment, what is measured and said of it, and how it ends."""
