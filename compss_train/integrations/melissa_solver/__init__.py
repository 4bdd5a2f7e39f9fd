"""The folder of ``melissa_api``, which ``compss-train headers --python`` prints."""
