"""What a worker process of the local engine does before its first task."""

from compss_train import LocalEngine


def test_what_tasks_use_is_imported_before_the_first_one():
    def imported():  # sent by value: nothing of this module is imported for it
        import sys

        return [name for name in sys.modules if name.startswith("compss_train.")]

    with LocalEngine(processes=1) as engine:
        (names,) = engine.fetch([engine.submit(imported)])
    of_tasks = ("worker.train", "parameters", "losses", "metrics", "optimizers")
    assert {f"compss_train.{name}" for name in of_tasks} <= set(names)
