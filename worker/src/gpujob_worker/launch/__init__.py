"""Starting the script as the interpreter would, and seeing what it imports."""
