"""The command: whom it asks, how it goes on, what it refuses, and what it leaves behind."""

import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest
from chat_endpoint import refused, serving, solver
from patience import patience
from trained_runs import config, make_run

from cojax.evaluation.evaluate import choose_splits, choose_subject, evaluate, tasks_of
from cojax.report import command as report
from cojax.report import page as pages
from cojax.report.page import write_evaluation_report
from cojax.rollout.collect import RolloutError
from cojax.run.export import export
from cojax.run.trained import of_run
from cojax.settings.presets import apply_preset
from cojax.storage.checkpoint import CheckpointError
from cojax.storage.evaluation_directory import EvaluationDirectory
from cojax.storage.files import RunDirectoryError, write_json
from environments import load
from environments.desk import Desk

ROOT = Path(__file__).parents[2]
SAMPLED = {"evaluation__temperature": 1.0}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    make_run(folder, config())
    return folder


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def of(settings, place, splits=("eval",), samples=1, out=None, kind="checkpoint"):
    named = {"checkpoint": None, "model": None, "endpoint": None, "endpoint_model": "m", kind: str(place)}
    return evaluate(settings, choose_subject(settings, **named)[0], splits, samples, out)


def episodes(out: Path) -> dict[str, list]:
    """Episode → its turns without their times."""
    with EvaluationDirectory(out) as directory:
        return {
            name: [(turn.action, turn.observation, turn.action_tokens, turn.action_logprobs) for turn in known.turns]
            for name, known in directory.valid_episodes().items()
        }


def test_a_stopped_evaluation_goes_on_to_the_identical_result(workdir, tmp_path, monkeypatch):
    settings, splits = config(**SAMPLED), ("eval", "dev")
    whole = of(settings, workdir, splits, 2, tmp_path / "whole")
    assert {name: (one["tasks"], one["episodes"]) for name, one in whole["splits"].items()} == {
        "eval": (3, 6), "dev": (2, 4),
    }  # fmt: skip
    add, count = EvaluationDirectory.add, iter(range(100))

    def stops(self, split, trajectory):
        add(self, split, trajectory)
        if next(count) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(EvaluationDirectory, "add", stops)
    with pytest.raises(KeyboardInterrupt):
        of(settings, workdir, splits, 2, tmp_path / "stopped")
    monkeypatch.setattr(EvaluationDirectory, "add", add)
    with open(tmp_path / "stopped/episodes.jsonl", "ab") as file:
        file.write(b'{"split": "eval", "task": {"enviro')  # killed within a line
    assert len(episodes(tmp_path / "stopped")) == 4
    assert of(settings, workdir, splits, 2, tmp_path / "stopped") == whole
    assert (tmp_path / "stopped/result.json").read_bytes() == (tmp_path / "whole/result.json").read_bytes()
    assert episodes(tmp_path / "stopped") == episodes(tmp_path / "whole")
    assert len({repr(turns) for turns in episodes(tmp_path / "whole").values()}) > 5


def test_a_model_folder_is_played_as_the_checkpoint_it_came_from(workdir, tmp_path):
    export(of_run(workdir, 1), tmp_path / "model")
    settings = config(**SAMPLED)
    for kind, place in (("checkpoint", workdir / "checkpoints/1"), ("model", tmp_path / "model")):
        of(settings, place, out=tmp_path / kind, kind=kind)
    assert episodes(tmp_path / "checkpoint") == episodes(tmp_path / "model")
    results = [json.loads((tmp_path / kind / "result.json").read_text()) for kind in ("checkpoint", "model")]
    assert results[0]["origin"] == {"folder": "", "steps": 1, "evolve": "feedback"}
    assert results[1]["origin"] == {"folder": str(tmp_path / "model")}
    assert "the model folder model as it is" in write_evaluation_report(tmp_path / "model").read_text()
    of(settings, workdir, out=tmp_path / "newest")
    assert episodes(tmp_path / "newest") != episodes(tmp_path / "model")


def test_other_tasks_of_the_same_name_are_another_evaluation(workdir, tmp_path, monkeypatch):
    of(config(), workdir, out=tmp_path / "out")
    tasks = Desk.tasks
    monkeypatch.setattr(Desk, "tasks", lambda desk, split, count, seed=0: tasks(desk, "dev", count, seed))
    with pytest.raises(RunDirectoryError, match=r"holds another evaluation.*splits\.eval was"):
        of(config(), workdir, out=tmp_path / "out")


def test_a_challenge_by_any_name_has_its_own_number_of_tasks():
    settings = config(evaluation__tasks=3, evaluation__challenge_split="challenge", evaluation__challenge_tasks=2)
    assert [len(tasks_of(settings, load("desk"), split)) for split in ("eval", "challenge")] == [3, 2]
    settings.evaluation.challenge_split = "elsewhere"
    assert len(tasks_of(settings, load("desk"), "challenge")) == 2


def test_another_evaluation_in_the_same_folder_is_refused_with_what_differs(workdir, tmp_path):
    out = tmp_path / "out"
    of(config(), workdir, out=out)
    for place, settings, samples, difference in (
        (workdir, config(evaluation__temperature=0.5), 1, "evaluation.temperature was 0.0, now 0.5"),
        (workdir, config(evaluation__tasks=2), 1, "evaluation.tasks was 3, now 2"),
        (workdir, config(**SAMPLED), 2, "samples"),
        (workdir / "checkpoints/1", config(), 1, "policy.checkpoint, policy.content"),
    ):
        with pytest.raises(RunDirectoryError, match="holds another evaluation") as caught:
            of(settings, place, samples=samples, out=out)
        assert difference in str(caught.value).replace("(evaluation.", "evaluation.").replace(")", "")
    with pytest.raises(RunDirectoryError, match="is the directory of a run"):
        of(config(), workdir, out=workdir)
    other = pytest.raises(RunDirectoryError, match=r"another process is running in .* choose another --out")
    with EvaluationDirectory(tmp_path / "held"), other:
        of(config(), workdir, out=tmp_path / "held")
    # What decides nothing may change.
    of(config(engine__slots=2, limits__concurrency=2, optimizer__learning_rate=0.5), workdir, out=out)


def test_another_shape_than_the_runs_is_an_error_that_names_the_flags(workdir):
    with pytest.raises(ValueError, match="was trained with another policy than --config describes") as caught:
        choose_subject(config(model__shape__hidden_size=32, model__tokenizer="bytes"), str(workdir), None, None, None)
    assert "model.tokenizer is 'words' in its config.json, 'bytes' here" in str(caught.value)
    assert "Add --config.model.tokenizer=words --config.model.shape.hidden_size=16" in str(caught.value)
    with pytest.raises(ValueError, match=r"Add --config\.model\.path="):
        choose_subject(config(model__path="models/Q"), str(workdir), None, None, None)


def test_the_preset_of_a_run_is_named_and_what_it_does_not_set(tmp_path):
    run = apply_preset(config(policy="tiny"), ["model.tokenizer", "model.shape.hidden_size"])
    write_json(tmp_path / "config.json", {"config": json.loads(json.dumps(run.to_dict()))})
    with pytest.raises(ValueError, match="was trained with another policy than --config describes") as caught:
        choose_subject(config(model__path="models/Q"), str(tmp_path), None, None, None)
    assert str(caught.value).endswith(
        "model.path is '' in its config.json, 'models/Q' here. "
        "Add --config.policy=tiny --config.model.tokenizer=words --config.model.shape.hidden_size=16"
    )


def test_whom_to_ask_must_be_one_and_there(workdir, tmp_path):
    for named in ((None,) * 4, (str(workdir), "m", None, None)):
        with pytest.raises(ValueError, match="name one with --checkpoint, --model or --endpoint"):
            choose_subject(config(), *named)
    with pytest.raises(CheckpointError, match="no step 9 in"):
        choose_subject(config(), str(workdir / "checkpoints/9"), None, None, None)
    with pytest.raises(CheckpointError, match="is not a run directory"):
        choose_subject(config(), str(tmp_path), None, None, None)
    with pytest.raises(ValueError, match="is no model folder in HF format"):
        choose_subject(config(), None, str(tmp_path), None, None)


def test_splits_are_the_configurations_or_the_environments_or_named():
    assert choose_splits(config(), None) == ["eval"]
    assert choose_splits(config(), ["all"]) == ["eval", "dev", "challenge"]
    assert choose_splits(config(), ["dev", " eval", "dev"]) == ["dev", "eval"]
    desk = load("desk")
    assert [len(tasks_of(config(), desk, split)) for split in ("eval", "dev", "challenge")] == [3, 2, 3]
    with pytest.raises(ValueError, match="moon"):
        tasks_of(config(), desk, "moon")


def test_an_endpoint_that_knows_the_solutions_scores_all_and_lost_episodes_are_played_again(tmp_path):
    settings = config(limits__error_rate=0.5, limits__max_turns=12)
    tasks = load("desk").tasks("eval", 3)
    solve, down = solver(tasks), True

    def script(request, number):
        if down and request["messages"][0]["content"] == tasks[1].query:
            return refused(400, "broken")
        return solve(request, number)

    with serving(script) as server:
        first = of(settings, server.url, out=tmp_path / "out", kind="endpoint")["splits"]["eval"]
        assert (first["success"], first["tasks"], first["lost"]) == (1.0, 2, 1)
        assert first["outcomes"] == {"engine_error": 1, "finished": 2}
        assert len(episodes(tmp_path / "out")) == 2
        down, asked = False, len(server.requests)
        second = of(settings, server.url, out=tmp_path / "out", kind="endpoint")["splits"]["eval"]
        assert (second["success"], second["tasks"], second["lost"]) == (1.0, 3, 0)
        assert len(server.requests) - asked == len(tasks[1].solution)
    # Finished: the result comes from the folder alone.
    third = of(settings, server.url, out=tmp_path / "out", kind="endpoint")["splits"]["eval"]
    assert third == second
    with pytest.raises(RolloutError, match="APIConnectionError"):
        of(config(limits__engine_deadline=0.3), server.url, out=tmp_path / "elsewhere", kind="endpoint")


def test_every_episode_is_on_a_page_that_asks_nothing_of_any_server(workdir, tmp_path, monkeypatch):
    of(config(**SAMPLED), workdir, ("eval", "dev"), 2, tmp_path / "out")
    monkeypatch.setattr(pages, "MAX_EVALUATION_BYTES", 12_000)
    (tmp_path / "out/report-99.html").write_text("of before")
    (tmp_path / "out/report-notes.html").write_text("somebody's own")
    assert write_evaluation_report(tmp_path / "out") == tmp_path / "out/report.html"
    (tmp_path / "out/report-notes.html").unlink()  # which is no page of ours, and is there
    texts = [path.read_text() for path in sorted((tmp_path / "out").glob("report*.html"))]
    assert len(texts) > 1
    found = [json.loads(re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)[0]) for text in texts]
    shown = [episode["id"] for page in found for episode in page["episodes"]]
    assert sorted(shown) == sorted(episodes(tmp_path / "out"))
    assert found[0]["pages"] == ["report.html", *(f"report-{page}.html" for page in range(2, len(texts) + 1))]
    assert found[0]["episodes"][0]["turns"][0]["words"]
    for text in texts:
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text.partition("<script")[0])
        assert "default-src 'none'" in text
    assert report.main([str(tmp_path / "out")]) == 0


def test_a_killed_command_goes_on_where_it_was(commands, tmp_path):
    tasks = load("desk").tasks("eval", 8)
    solve, log = solver(tasks), tmp_path / "out/episodes.jsonl"
    two_stored, killed = threading.Event(), threading.Event()

    def hold_the_third(request, number):
        """Answers until two episodes are stored, then not before the command was killed."""
        if log.exists() and log.read_bytes().count(b"\n") >= 2:
            two_stored.set()
            killed.wait(patience(120))
        return solve(request, number)

    with serving(hold_the_third) as server:
        arguments = (
            "experiments.evaluate", "--config=experiments/desk.py", f"--endpoint={server.url}", "--endpoint_model=m",
            f"--out={tmp_path / 'out'}", "--config.evaluation.tasks=8", "--config.limits.concurrency=1",
        )  # fmt: skip
        environment = {**os.environ, "COJAX_CACHE": str(tmp_path / "cache")}
        begun = commands.start(*arguments, environment=environment)
        assert two_stored.wait(patience(120))
        begun.send_signal(signal.SIGKILL)
        begun.wait(timeout=patience(60))
        killed.set()
        have = log.read_bytes().count(b"\n")
        assert not (tmp_path / "out/result.json").exists()
        done = commands.run(*arguments, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{have} of 8 episodes are stored already" in done.stdout
    assert "100.0 % (67.6–100.0)" in done.stdout
    assert "Traceback" not in done.stderr
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert result["splits"]["eval"]["avg_at_k"] == {
        "value": 1.0, "low": pytest.approx(0.67559, abs=1e-4), "high": 1.0, "count": 8,
    }  # fmt: skip


def test_a_mistake_ends_in_one_line(commands, tmp_path):
    named = ("--endpoint=http://127.0.0.1:9/v1", "--endpoint_model=m", "--samples=2", f"--out={tmp_path}")
    done = commands.run("experiments.evaluate", "--config=experiments/desk.py", *named)
    assert done.returncode == 1
    assert "add --config.evaluation.temperature=1, or leave --samples out" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--config.environment.isolted=1", "did you mean environment.isolated? it has isolated"),
        ("--config.environment=", "environment.name is empty; name the environment to evaluate in"),
        ("--config.learner.loss=hope", "loss 'hope' not found"),
        ("--samples=x", "--samples is 'x'; expected a whole number"),
    ],
)
def test_a_wrong_setting_is_said_before_the_policy_is_read(argument, said, commands, tmp_path):
    given = ("--config=experiments/desk.py", f"--checkpoint={tmp_path}/none", argument)
    done = commands.run("experiments.evaluate", *given)
    assert done.returncode == 1
    assert said in done.stdout
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")
