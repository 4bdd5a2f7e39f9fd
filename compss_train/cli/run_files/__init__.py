"""Training runs described by TOML files: what ``compss-train fit`` reads and writes, and other commands use."""
