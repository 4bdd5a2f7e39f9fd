"""The tasks of a fit: their numbers and names, and no parameters in the coordinator before the end."""

import json
import re
from collections import Counter

TASK = re.compile(r'^\d+\[shape=circle, style=filled fillcolor="(#\w+)"', re.MULTILINE)
LEGEND = re.compile(r'compss_train\.engines\.compss\.tasks\.(\w+)\.cu1</td>\s*<td bgcolor="(#\w+)"')


def tasks(done):
    """Count the tasks of each name in the graph."""
    graph = (done.log / "monitor" / "complete_graph.dot").read_text()
    names = {colour: name for name, colour in LEGEND.findall(graph)}
    return Counter(names[colour] for colour in TASK.findall(graph))


def fitted(run, tmp_path, *options):
    result = tmp_path / "result.json"
    done = run("fit.py", result, *options, flags=("--graph",))
    assert done.returncode == 0, done.output
    return json.loads(result.read_text()), done


def test_a_fit_has_a_training_task_per_group_and_epoch(run, tmp_path):
    result, done = fitted(run, tmp_path, "workers=20", "blocks=20", "samples=100", "num_epochs=2", "hidden=4096")
    # Workers that take less time than a task costs are two groups on two units, whose results one task averages; it
    # passes on their metrics.
    assert tasks(done) == {"train": 2 * 2, "average": 2, "evaluate": 2}
    large = [size for size in result["fetched"] if size > 10_000]
    assert len(large) == 1
    assert result["bytes"] < large[0] < result["bytes"] + 2000
    assert len(result["fetched"]) == 2 + 1 + 2


def test_each_kind_of_task_has_its_name(run, tmp_path):
    options = ("workers=3", "blocks=4", "num_epochs=2", "merge=commutative", "shuffles=total")
    _, done = fitted(run, tmp_path, *options)
    assert tasks(done) == {"train": 6, "commute": 6, "shuffle": 8, "copy": 1, "evaluate": 2}
