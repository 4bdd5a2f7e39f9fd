"""Training runs that a TOML file describes: the command ``compss-train fit`` and those that use what it leaves."""
