"""The cluster: started, joined, or the user's; who may join it, and what is said where there is
none.
"""

import faulthandler
import os
import re
import shlex
import socket
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import psutil
import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from compss_train import DistributedTrainer, EngineClosedError
from compss_train.cli import main
from compss_train.cli.ray_checks import KEEPALIVE, check_keepalive
from compss_train.engines import RayEngine, Resources, liveness
from compss_train.engines.nodes import Node
from compss_train.engines.ray import cluster, submitter
from compss_train.engines.ray.submitter import Submitter
from tests.engines import tasks
from tests.helpers.models import SGD, classification, mlp
from tests.helpers.processes import ROOT
from tests.helpers.ray_cluster import NODE, started_by_hand
from tests.helpers.waiting import LIMIT, wait_until


@pytest.mark.slow  # another cluster
def test_a_program_has_a_cluster_of_its_own_that_no_stranger_joins():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    program = [sys.executable, str(ROOT / "tests/ray/own_cluster.py")]
    environment = {**environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "nodes ['127.0.0.2']" in done.stdout
    assert "a worker prints, as nice as the program: True" in done.stdout + done.stderr
    assert "stranger: 1 True ''" in done.stdout
    assert "left running: False" in done.stdout
    # About what this process prints.
    assert "left in the environment: ['RAY_DEDUP_LOGS']" in done.stdout


PINGS = re.search(r"--system-config='(\S+)'", (ROOT / "docs/ray.md").read_text())[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "options", [[], [f"--system-config={PINGS}"]], ids=["Ray's own", ("as documented")]
)
def test_tasks_of_150_seconds_run_once_on_nodes_started_by_hand(options, tmp_path):
    faulthandler.cancel_dump_traceback_later()  # pytest's, after less time than it takes
    program = [
        sys.executable,
        str(ROOT / "tests/ray/long_tasks.py"),
        str(tmp_path / "notes"),
        "150",
    ]
    with started_by_hand(*options) as environment:
        done = subprocess.run(
            program, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    assert (done.returncode, done.stdout) == (0, "[1, 2]\n"), done.stderr
    assert sorted((tmp_path / "notes").read_text().split()) == ["1", "2"]
    assert "too_many_pings" not in done.stderr


def trained_rounds():
    """Train two rounds; the second would place the workers where their states are."""
    with DistributedTrainer(2, engine="ray", seed=0, threads=1) as trainer:
        trainer.build(mlp(), SGD, "cross_entropy")
        trainer.fit(*classification(), num_epochs=2, batch_size=20, progress=False)
        return len(trainer.history)


class Trial:
    """A program of Ray Tune's, whose tasks get what is reserved for it."""

    def run(self):
        return trained_rounds()


@pytest.mark.slow  # agents and tasks in processes of their own
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["task", "actor"])
def test_a_program_that_has_all_cpus_reserved_trains_on_them(shared_ray, kind):
    """What is outside the group would wait for ever."""
    cpus = shared_ray.slots(Resources())
    group = ray.util.placement_group([{"CPU": 1}] * cpus)
    inside = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    options = {"num_cpus": 0, "scheduling_strategy": inside}
    try:
        ray.get(group.ready(), timeout=LIMIT)
        if kind == "task":
            running = ray.remote(trained_rounds).options(**options).remote()
        else:
            trial = ray.remote(Trial).options(**options).remote()
            running = trial.run.remote()
        assert ray.get(running, timeout=500) == 2
    finally:
        ray.util.remove_placement_group(group)


@pytest.mark.slow  # as above, and each waits for the CPUs for some seconds
@pytest.mark.timeout(600)
@pytest.mark.parametrize("captures", [False, True])
def test_a_program_that_has_the_cpus_for_its_workers_itself_says_so(shared_ray, captures):
    cpus = shared_ray.slots(Resources())
    group = ray.util.placement_group([{"CPU": 1}] * (1 if captures else cpus))
    inside = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=captures)
    try:
        ray.get(group.ready(), timeout=LIMIT)
        wait_until(lambda: captures or not ray.available_resources().get("CPU"))
        where = "placement group's 1" if captures else f"cluster's {cpus}"
        said = (
            f"a task needs 1 CPUs, and 0 of the {where} are free; this task or actor has 1 itself"
        )
        with pytest.raises(RuntimeError, match=said):
            ray.get(
                ray.remote(trained_rounds).options(scheduling_strategy=inside).remote(), timeout=500
            )
    finally:
        ray.util.remove_placement_group(group)


def test_a_trial_without_cpus_for_workers_says_how_to_give_them(shared_ray, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("No trial resources are available")

    monkeypatch.setattr(ray.remote_function.RemoteFunction, "_remote", refuse)
    with pytest.raises(RuntimeError, match="No trial resources are available") as caught:
        shared_ray.fetch([shared_ray.submit(tasks.add, 1, 2)])
    assert (
        "tune.PlacementGroupFactory([{}] + [{'CPU': 1}] * num_workers)" in caught.value.__notes__[0]
    )
    monkeypatch.undo()
    assert shared_ray.fetch([shared_ray.submit(tasks.add, 1, 2)]) == [3]


def ray_variables():
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_")}


@pytest.fixture
def joined(monkeypatch):
    """The arguments of each call of ``ray.init``, and Ray's variables in the environment at that
    time.
    """
    for name in ray_variables():
        monkeypatch.delenv(name)
    # About what this process prints, not about connections.
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    calls = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: calls.append((options, ray_variables())))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(cluster, "forget_last_cluster", lambda ray: None)
    return calls


def test_a_cluster_that_others_have_started_gets_no_setting(joined, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as head:
        monkeypatch.setenv(cluster.ADDRESS, f"127.0.0.1:{head.getsockname()[1]}")
        before = ray_variables()
        context = SimpleNamespace(gcs_address=os.environ[cluster.ADDRESS])
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        cluster.join()()
    ((options, variables),) = joined
    assert variables == before == ray_variables()
    assert {*options} == {"address", "runtime_env", "logging_level"}
    assert options["runtime_env"] is None


def test_all_ends_of_a_cluster_of_our_own_have_its_settings_and_later_ones_do_not(
    joined, monkeypatch
):
    """The head gives what it gets to all processes; what is in the environment, they inherit."""
    monkeypatch.setenv("RAY_task_oom_retries", "7")  # the user's, which all inherit
    before = ray_variables()
    leave = cluster.join()
    ((options, variables),) = joined
    assert options["_system_config"] == {"worker_niceness": 0}
    assert {*variables} - {*before} == {"RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"}
    leave()
    assert ray_variables() == before


TOKENS = """
import os
from compss_train.engines.ray import cluster

right = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.environ["RAY_AUTH_TOKEN"]}
wrong_tokens = {"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_TOKEN": ""}
for change in (*wrong_tokens, {"RAY_AUTH_MODE": "disabled"}, {}):
    os.environ.update(right | change)
    try:
        cluster.join()()
        print("joined")
    except ConnectionError as error:
        print(error)
"""


@pytest.mark.usefixtures("shared_ray")
def test_a_wrong_token_is_named_and_can_be_put_right(ray_cluster, tmp_path):
    once = {"RAY_NUM_REDIS_GET_RETRIES": "1", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **once, cluster.ADDRESS: ray_cluster.address}
    program = [sys.executable, "-c", TOKENS]
    done = subprocess.run(
        program, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    wrong, missing, disabled, right = done.stdout.splitlines()
    assert f"{ray_cluster.address}: the cluster refuses the token in RAY_AUTH_TOKEN" in wrong
    assert "RAY_AUTH_MODE=token, but the token is missing here" in missing
    assert "the cluster asks for a token, and RAY_AUTH_MODE=token is not set here" in disabled
    for line in (wrong, missing, disabled):
        assert "in the file that RAY_AUTH_TOKEN_PATH names, or in ~/.ray/auth_token" in line
        assert environment["RAY_AUTH_TOKEN"] not in line
    assert right == "joined"


class WithoutCluster(Submitter):
    """Has nodes, but starts no agents on them."""

    def __init__(self, start):
        self._id = "1"
        self.agents = {}
        self.nodes = {}
        self._elsewhere = []
        self._unwatched = set()
        self._cancelled = {}
        self._custom = {}
        self._group = None
        self._has_room = False
        self._new_agent = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))

    def look(self):
        self._look_for_nodes()
        return self._check()


def test_nodes_have_agents_before_other_threads_see_them(monkeypatch):
    """The thread of the progress bar asks them at any time."""
    agent = MagicMock()
    asked = []

    def start(*_):
        asked.append(made.ask_agents("samples", 1.0))
        return agent

    made = WithoutCluster(start)
    monkeypatch.setattr(ray, "get", lambda refs, timeout: len(refs))
    monkeypatch.setattr(cluster, "nodes_by_id", lambda: {each * 56: Node("n", 1) for each in "ab"})
    made.look()
    assert [*asked, made.ask_agents("samples", 1.0)] == [0, 0, 2]
    made.agents.clear()  # as the end of the engine does
    assert made.ask_agents("samples", 1.0) == 0


def test_every_node_has_an_agent_of_its_own_that_watches(ray_cluster, monkeypatch):
    """Also if Ray starts the first ones on another node, as it does when a node has just joined."""
    affinity = submitter.NodeAffinity
    misled = []

    def misleading(node, **options):
        if len(misled) < 2:
            misled.append(node)
            node = next(each for each in cluster.nodes_by_id() if each != node)
        return affinity(node, **options)

    monkeypatch.setattr(submitter, "NodeAffinity", misleading)
    monkeypatch.setattr(submitter, "NODES_SECONDS", 0.1)
    made = submitter.Submitter()
    try:
        wait_until(lambda: len(made.agents) == 2 and all(made.ask_agents("watches", 30)))
        assert len(set(misled)) == 2
    finally:
        made.stop()
        made.ask_agents("close", 5.0)


class ThreeAgents(Submitter):
    """Makes several agents for each node."""

    def _add_agent(self, node):
        for _ in range(3):
            super()._add_agent(node)
            self._elsewhere.append(self.agents[node])

    def watching(self):
        return ray.get([agent.watches.remote() for agent in self._elsewhere], timeout=300)


@ray.remote(num_cpus=2)
class Holder:
    """Holds the CPUs of its node."""

    def holds(self):
        return True


@pytest.mark.slow  # three agents on each node
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("shared_ray")
def test_agents_start_on_their_nodes_also_if_others_hold_the_cpus_of_one():
    """Ray starts an actor that asks for nothing anywhere, most often where CPUs are held."""
    holder = Holder.remote()
    try:
        assert ray.get(holder.holds.remote(), timeout=300)
        made = ThreeAgents()
        assert made.watching() == [True] * 6
        made.stop()
        made.ask_agents("close", 60.0)
    finally:
        ray.kill(holder)


def test_a_process_that_stands_still_between_two_looks_at_the_clock_goes_on(monkeypatch):
    # The next look is due before the thread waits for it.
    monkeypatch.setattr(submitter, "NODES_SECONDS", -1.0)
    monkeypatch.setattr(cluster, "nodes_by_id", dict)
    assert WithoutCluster(MagicMock()).look() == 0


@pytest.mark.parametrize(
    ("free", "said"), [([{}, {"CPU": 1.0}, {"CPU": 2.0}], False), ([{}] * 2, True)]
)
def test_a_program_without_free_cpus_says_that_it_waits(monkeypatch, capsys, free, said):
    monkeypatch.setattr(submitter, "ROOM_SECONDS", 0.0 if said else 1e6)
    monkeypatch.setattr(ray, "available_resources", iter(free).__next__)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    made = WithoutCluster(MagicMock())
    for _ in range(2):  # it looks for the first tasks only
        made.await_room(2)
    text = (
        "a task needs 2 CPUs, and 0 of the cluster's 4 are free: tasks, actors and placement groups"
    )
    printed = capsys.readouterr().err
    assert printed.startswith(f"compss_train: {text}") if said else printed == ""


def test_a_node_that_is_lost_is_named(monkeypatch, capsys):
    made = WithoutCluster(MagicMock())
    nodes = {"a" * 56: Node("first", 2), "b" * 56: Node("second", 2)}
    monkeypatch.setattr(cluster, "nodes_by_id", nodes.copy)
    made.look()
    assert capsys.readouterr().err == ""
    del nodes["b" * 56]
    made.look()
    made.look()
    text = (
        "node second is lost or has left: its tasks run again, and its values are made "
        "again; 1 node is left"
    )
    assert capsys.readouterr().err == f"compss_train: {text}\n"


@pytest.mark.parametrize(
    ("listens", "goodbye", "said"),
    [(True, "", ""), (False, "left", ""), (False, "", ("start it again"))],
)
def test_the_last_words_are_said_if_program_and_head_have_ended(listens, goodbye, said):
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        if listens:
            head.listen()
        command = [
            "-c",
            cluster.LAST_WORDS,
            "127.0.0.1",
            str(head.getsockname()[1]),
            ("start it again"),
        ]
        done = subprocess.run(
            [sys.executable, *command], input=goodbye, capture_output=True, text=True, check=True
        )
    assert done.stderr == said


JOINED = """
from compss_train.engines import RayEngine

engine = RayEngine()
print("joined", flush=True)
while True:
    engine.fetch([engine.submit(max, 1, 2)])
"""


@pytest.mark.slow
def test_a_program_whose_head_is_lost_says_how_to_resume(tmp_path):
    (tmp_path / "program.py").write_text(JOINED)
    command = [sys.executable, str(tmp_path / "program.py"), "two words"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        started_by_hand() as environment,
        subprocess.Popen(command, env=environment, **pipes) as program,
    ):
        assert program.stdout.readline() == "joined\n"
        address = environment["RAY_ADDRESS"]
        for each in psutil.process_iter(["name", "cmdline"]):
            if (
                each.info["name"] in ("gcs_server", "raylet")
                and address.partition(":")[2] in f"{each.cmdline()}"
            ):
                each.kill()
        _, printed = program.communicate(timeout=LIMIT)
    (line,) = [
        line
        for line in printed.splitlines()
        if line.startswith("compss_train: the head of the Ray cluster")
    ]
    assert line.endswith(
        f"fit(resume=True) continues from the newest checkpoint: {shlex.join(command)}"
    )


@pytest.mark.slow  # other processes of each node
def test_the_users_cluster_is_used_and_left_running(shared_ray):
    with RayEngine() as engine:
        ref = engine.publish(1)
        assert engine.fetch([engine.submit(tasks.add, ref, 2)]) == [3]
    assert ray.is_initialized()
    for call in (
        lambda: engine.fetch([ref]),
        lambda: engine.keep([ref]),
        lambda: engine.reserve([Resources()]),
    ):
        with pytest.raises(EngineClosedError, match="shut down"):
            call()
    assert shared_ray.fetch([shared_ray.publish(5)]) == [5]


def train_samples(count):
    liveness.beat(count)


@pytest.mark.usefixtures("shared_ray")
def test_processes_report_to_each_engine_of_a_program():
    """Ray keeps processes for the next engine, and the end of one removes its reports."""
    for _ in range(2):
        with RayEngine() as engine:
            engine.fetch([engine.submit(train_samples, 5) for _ in range(8)])
            wait_until(lambda: engine.trained_samples() == 40)


@pytest.mark.parametrize(
    ("address", "error", "text"),
    [
        (
            "ray://head:10001",
            ValueError,
            ("Ray Client .* is not supported; start the program on a node"),
        ),
        ("127.0.0.1:1", ConnectionError, "no Ray cluster answers there .*ray start --head"),
    ],
)
def test_addresses_without_a_cluster_are_errors(monkeypatch, address, error, text):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv(cluster.ADDRESS, address)
    with pytest.raises(error, match=text):
        RayEngine()


def test_more_than_the_cluster_has_is_an_error(shared_ray):
    with pytest.raises(
        ValueError, match=("a task needs 99 CPUs, the largest node has 2; use fewer threads")
    ):
        shared_ray.submit(tasks.add, 1, resources=Resources(99))
    with pytest.raises(
        ValueError, match=r"9 tasks have to run at the same time .* or let more nodes join"
    ):
        shared_ray.reserve([Resources()] * 9)
    trainer = DistributedTrainer(2, engine=shared_ray, threads=1)
    with pytest.raises(ValueError, match="num_gpu=1, but the ray engine has 0 GPUs"):
        trainer.build(mlp(), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy", num_gpu=1)


@pytest.mark.usefixtures("shared_ray")
def test_the_doctor_finds_the_nodes(ray_cluster, monkeypatch, capsys):
    monkeypatch.setenv(cluster.ADDRESS, ray_cluster.address)
    assert main(["doctor", "--engine", "ray"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("2 CPUs, 0 GPUs") == 2
    assert "300,000 ms here and on all nodes that answer" in printed
    assert printed.endswith("The ray engine can run here.\n")


@pytest.mark.slow  # three programs that join the cluster
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            f"RAY_{KEEPALIVE}",
            "20000",
            ("20,000 ms here, 300,000 ms on the nodes; where they differ, tasks of"),
        ),
        ("RAY_AUTH_TOKEN", "0" * 64, "the cluster refuses the token in RAY_AUTH_TOKEN"),
        (cluster.ADDRESS, "127.0.0.1:1", "127.0.0.1:1: no Ray cluster answers there"),
    ],
)
def test_the_doctor_finds_what_separates_a_program_from_its_cluster(
    ray_cluster, monkeypatch, capsys, name, value, text
):
    monkeypatch.setenv("RAY_NUM_REDIS_GET_RETRIES", "1")
    monkeypatch.setenv(cluster.ADDRESS, ray_cluster.address)
    monkeypatch.setenv(name, value)
    assert main(["doctor", "--engine", "ray"]) == 1
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("here", "there", "state"),
    [
        (300_000, [300_000] * 2, "ok"),
        (20_000, [20_000], "ok"),
        (300_000, [], "ok"),
        (20_000, [300_000] * 2, "missing"),
        (300_000, [20_000, 300_000], "missing"),
    ],
)
def test_ends_with_other_intervals_between_pings_are_found(here, there, state):
    assert check_keepalive(here, there).state == state


@pytest.fixture
def big_node(ray_cluster, shared_ray):
    """A node with a custom resource for three tasks."""
    node = ray_cluster.add_node(**NODE, resources={"bigmem": 3.0})
    wait_until(lambda: any(cluster.fitting_by_id({"bigmem": 1}).values()))
    yield node
    ray_cluster.remove_node(node, allow_graceful=False)


def node_of_task():
    return ray.get_runtime_context().get_node_id()


def test_workers_take_custom_resources(big_node, shared_ray):
    with RayEngine(resources={"bigmem": 1.5}) as engine:
        assert engine.slots(Resources()) == 2
        refs = [engine.submit(node_of_task) for _ in range(4)]
        assert {*engine.fetch(refs)} == {big_node.node_id}
        with pytest.raises(ValueError, match=r"do not have resources={'bigmem': 1.5} for each"):
            engine.reserve([Resources()] * 3)
    with pytest.raises(ValueError, match=r"ray start --resources='{\"bigmem\": 4}'"):
        RayEngine(resources={"bigmem": 4})


def test_what_is_no_custom_resource_is_an_error(raises):
    with raises(ValueError, "CPU is no custom resource"):
        RayEngine(resources={"CPU": 1})
    with raises(ValueError, "resources['bigmem']"):
        RayEngine(resources={"bigmem": 0})


@pytest.mark.parametrize(
    "call",
    [
        lambda: DistributedTrainer(2, resources={"bigmem": 1}),
        lambda: DistributedTrainer(2, engine="serial").fit(0, num_epochs=1, resources={"a": 1}),
    ],
)
def test_keywords_for_resources_name_the_engine(call, raises):
    with raises(TypeError, "DistributedTrainer(engine=RayEngine(resources={'bigmem': 1}))"):
        call()
