import pytest

from compss_train._utils.files import atomic_path


def test_a_file_is_replaced_when_it_is_complete(tmp_path):
    path = tmp_path / "file.txt"
    for text in ("first", "second"):
        with atomic_path(path) as temporary:
            assert temporary.suffix == ".txt"
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "first"
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_the_existing_file_stays_if_writing_fails(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError), atomic_path(path) as temporary:
        temporary.write_text("half\ud800", encoding="utf-8")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
