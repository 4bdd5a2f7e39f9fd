"""What docs/scikit-learn.md prints works as printed."""

from tests.helpers.documents import python_blocks


def test_the_examples_run(run_blocks):
    blocks = python_blocks("docs/scikit-learn.md")
    assert len(blocks) == 4
    score, *shapes, best, in_blocks = run_blocks(blocks).splitlines()
    assert float(score) > 0.94
    assert shapes == ["(3, 10)", "(450, 64)"]
    assert best == "{'num_epochs': 8, 'optimizer': {'optimizer': 'adam', 'lr': 0.01}}"
    assert float(in_blocks) > 0.95
