"""Workers that only receive."""

from tests.online.stub_fits import make_stub

__all__ = ["make_stub"]
