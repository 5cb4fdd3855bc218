"""How each kind of value in a script's variables is saved and brought back.

`table` is the entry. `reader` and `restorer` go through the values. Each family of values is one
module with both directions.
"""
