"""The version of this package; a module of its own, as rooms may not import the package that holds them."""

__version__ = "0.1.0"
