"""The openb protocol: traces, one-by-one arrivals, and the policies of others.

Peers' policies live here so that they are never mistaken for the product's own rule, which is
`gpujob_operator.decide.packing.select`.
"""
