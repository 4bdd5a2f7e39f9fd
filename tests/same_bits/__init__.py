"""Kinds of fits that keep their bits, and the comparison of two checkouts: ``python -m
tests.same_bits``.
"""
