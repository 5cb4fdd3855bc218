"""Derived values kept from cycle to cycle. Dropping any of it changes no plan."""
