"""What a program prints that ends with an error."""


def assert_one_line_error(done, *parts):
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert ": error: " in done.stderr
    for part in parts:
        assert part in done.stderr


def assert_wrong_option(done, *parts):
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr.splitlines()[-1]
