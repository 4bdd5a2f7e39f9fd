from pathlib import Path

from compss_train.engines.compss.configuration import DEFAULT_HOME, compss_home, presumed_home


def test_compss_home_is_where_runcompss_lies(tmp_path, monkeypatch):
    scripts = tmp_path / "Runtime/scripts/user"
    scripts.mkdir(parents=True)
    (scripts / "runcompss").write_text("#!/bin/sh\n")
    (scripts / "runcompss").chmod(0o755)
    monkeypatch.delenv("COMPSS_HOME", raising=False)
    monkeypatch.setenv("PATH", str(scripts))
    assert compss_home() == tmp_path
    monkeypatch.setenv("PATH", "/nowhere")
    assert (compss_home(), presumed_home()) == (None, DEFAULT_HOME)
    monkeypatch.setenv("COMPSS_HOME", "/elsewhere")
    assert compss_home() == Path("/elsewhere")
