"""Reports that are drawn within a moment."""

import pytest

from compss_train.reports import curves


@pytest.fixture(autouse=True)
def first_panel_only(monkeypatch):
    """Reports draw one panel: each takes 50 ms, and ``tests/reports`` looks at all of them."""
    from compss_train.reports import plots  # noqa: F401 - imported later, it would keep the function below for good

    whole = curves.panels
    monkeypatch.setattr(curves, "panels", lambda *args, **options: whole(*args, **options)[:1])
