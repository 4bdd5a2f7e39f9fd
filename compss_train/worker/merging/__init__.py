"""Merges, in tasks: what workers bring to them, rules that reduce it, and steps that follow."""
