"""One module for each command: its options, its text and its JSON. `grammar.VERBS` lists them."""
