"""Helpers of all rooms: validation, optional imports, files, closing. Knows nothing of training."""
