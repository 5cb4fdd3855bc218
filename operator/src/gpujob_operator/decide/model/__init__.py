"""The vocabulary of the decisions: snapshot, plan, configuration, reasons and conditions.

The package decides nothing. It imports no other package of `decide`, and it is the only one that
the rest of the operator (`act`, `observe`, `read`, `render`) may import.
"""
