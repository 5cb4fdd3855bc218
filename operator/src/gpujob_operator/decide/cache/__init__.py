"""Values derived from the snapshot, kept from cycle to cycle. Dropping any of them changes no plan.

The package decides nothing. It may import every package with rules, to keep what their functions
return. No package with rules imports it.
"""
