"""The command ``compss-train``."""
