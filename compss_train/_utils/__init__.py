"""Helpers of all packages: validation, imports, files, locks and closing."""
