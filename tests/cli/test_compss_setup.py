from compss_train.cli.main import main
from compss_train.engines.compss.configuration import read_project, read_resources


def test_configure_writes_both_files(tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert main(["configure", "--nodes", "2", "--units", "3", "--folder", str(folder)]) == 0
    assert len(read_project(folder / "project.xml")) == 2
    assert "127.0.0.2: 3 CPU units, 0 GPUs" in capsys.readouterr().out
    assert main(["configure", "--hosts", "n1, n2", "--gpus", "4", "--folder", str(folder)]) == 0
    assert [*read_resources(folder / "resources.xml")] == ["n1", "n2"]


def test_configure_prints_errors(tmp_path, capsys):
    assert main(["configure", "--units", "-1", "--folder", str(tmp_path)]) == 2
    assert "compss-train configure: units=-1 for localhost" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
