"""Reports that are drawn within a moment."""

import pytest

from compss_train.reports import curves


@pytest.fixture(autouse=True)
def first_panel_only(monkeypatch):
    """Reports draw one panel: each takes 50 ms, and ``tests/reports`` looks at all of them."""
    whole = curves.panels
    monkeypatch.setattr(curves, "panels", lambda *args, **options: whole(*args, **options)[:1])
