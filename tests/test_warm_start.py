"""The warm start's schedule, its demonstrations, and its cache."""

import json
import shutil

import jax
import numpy as np
import pytest
from learner.tiny_learner import PARAMS, bits, make_learner
from steady_engine import SteadyEngine

import environments
from cojax import warm_start
from cojax.environment import EnvironmentFailure, LimitExceeded
from cojax.environment.replay import follow
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import initialize
from cojax.rollout.chat import Chat, no_document
from cojax.rollout.export import load_params
from cojax.rollout.vocabulary import word_tokenizer
from cojax.storage.checkpoint import Checkpointer
from cojax.types import Action, Call, Task
from cojax.warm_start import Schedule, demonstrate, describe_model, obtain, play_actions, strip_prose, train_policy
from tests.counter_environment import CounterEnvironment

DESK = environments.load("desk")
NAMES, TEXTS = DESK.lexicon()
TOKENIZER = word_tokenizer(NAMES, [*TEXTS, *(task.query for task in DESK.tasks("seed", 300))], DESK.tools())
CHAT = Chat(TOKENIZER, no_document)
SMALL = ModelConfig(
    vocab_size=448,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
)


def test_batches_begin_with_the_shortest_and_reach_all():
    schedule = Schedule(steps=100, batch_size=32, lengthen=50)
    assert schedule.count_reachable(1, 1000) == 216  # 0.2 + 0.8 / 50 of them
    assert schedule.count_reachable(25, 1000) == 600
    assert schedule.count_reachable(50, 1000) == 1000
    assert schedule.count_reachable(1, 40) == 32  # never less than a batch


def test_an_epoch_shows_every_demonstration_once():
    schedule = Schedule(batch_size=4, epochs=True)
    drawn = [index for step in range(1, 6) for index in schedule.draw_batch(0, step, 10)]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
    assert drawn[:4] == schedule.draw_batch(0, 1, 10) != schedule.draw_batch(1, 1, 10)
    short = Schedule(batch_size=3, lengthen=100).draw_batch(0, 1, 10)
    assert sorted(short) == [0, 1, 2]  # without epochs the shortest come first


def test_demonstrations_are_what_a_policy_would_have_seen_and_said():
    task, actions = next(iter(DESK.demonstrations(1, 0, (0.0, 0.0))))
    tokens, mask = next(demonstrate(DESK, CHAT, [(task, actions)]))
    said = [token for token, learned in zip(tokens, mask, strict=True) if learned]
    assert said == [token for action in actions for token in CHAT.encode_action(action)]
    assert tokens[: len(tokens) - 1].count(CHAT.end) == 2 * len(actions) - 1  # each turn ends twice, but the last
    assert not mask[0]


def test_a_demonstration_lost_to_the_machinery_is_never_learned_from():
    def lose(task: Task, step: int) -> None:
        raise LimitExceeded("10 s are over")

    task = Task("counter", "count to 1", {"target": 1}, (Action(calls=(Call("add"),)),))
    with pytest.raises(EnvironmentFailure, match=r"ended in timeout \(step: 10 s are over\); run the same command"):
        play_actions(CounterEnvironment(on_step=lose), task, follow(task.solution), 1)
    assert play_actions(CounterEnvironment(), task, follow(task.solution), 1).reward == 1.0


def test_no_word_of_the_desk_is_unknown():
    for split in ("seed", "dev", "eval", "challenge"):
        for task in DESK.tasks(split, 200):
            tokens, _ = next(demonstrate(DESK, CHAT, [(task, task.solution)]))
            assert TOKENIZER.unk_token_id not in tokens


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make(checkpointer):
    checks = [{"step": 1, "loss": 0.5, "success": 0.25}]
    return initialize(SMALL, 0), {"checks": checks, "demonstrations": 100, "dropped": 3, "shown": 0}


def test_a_model_is_made_once_for_a_key(cache):
    folder, made = obtain({"seed": 0}, make, SMALL, TOKENIZER)
    assert made
    assert json.loads((folder / "warm_start.json").read_text())["checks"] == [{"step": 1, "loss": 0.5, "success": 0.25}]
    assert (load_params(folder, SMALL)["embed"]["embedding"] == initialize(SMALL, 0)["embed"]["embedding"]).all()

    line = "100 demonstrations (3 too long for a row and left out), 1 batches, loss 0.500, dev success 25.0 %"
    assert describe_model(folder) == line

    def never(checkpointer):
        raise AssertionError("made twice")

    assert obtain({"seed": 0}, never, SMALL, TOKENIZER) == (folder, False)
    other, made = obtain({"seed": 1}, make, SMALL, TOKENIZER)
    assert made
    assert other != folder


def test_an_interrupted_warm_start_leaves_nothing(cache):
    def stop(checkpointer):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain({"seed": 0}, stop, SMALL, TOKENIZER)
    assert list((cache / "warm-start").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(monkeypatch):
    monkeypatch.setenv("COJAX_CACHE", "/proc/cojax")
    with pytest.raises(OSError, match="Set COJAX_CACHE to a writable folder"):
        obtain({"seed": 0}, make, SMALL, TOKENIZER)


def test_a_damaged_model_says_what_to_delete(cache):
    folder, _ = obtain({"seed": 0}, make, SMALL, TOKENIZER)
    (folder / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(ValueError, match=f"Delete {folder}"):
        load_params(folder, SMALL)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        load_params(folder, SMALL)


@pytest.mark.parametrize("name", ["CHATML", "TOOLS_SECTION"])
def test_the_fingerprint_is_stable_and_of_the_templates_too(monkeypatch, name):
    before = warm_start.hash_code()
    assert warm_start.hash_code() == before
    monkeypatch.setattr(warm_start.rendering, name, "another")
    assert warm_start.hash_code() != before


def test_prose_is_no_part_of_the_code_that_decides_a_warm_start():
    bare = "class A:\n    rate = 1\n\n    def f(self):\n        return 'text'\n"
    documented = bare.replace(":\n    rate", ':\n    """Class."""\n    rate').replace("rate = 1", "rate = 1  # comment")
    assert documented != bare
    assert strip_prose('"""File."""\n' + documented) == strip_prose(bare)
    assert strip_prose(bare.replace("1", "2")) != strip_prose(bare) != strip_prose(bare.replace("text", "other"))
    assert strip_prose('def f():\n    """Alone."""') == strip_prose("def f():\n    pass")


class Stopped(Exception):
    pass


def test_a_training_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    schedule = Schedule(steps=6, batch_size=2, lengthen=4, check_every=2, target=2.0)
    demonstrations = [([1, 2, *range(3, 4 + length)], [False, False, *[True] * (1 + length)]) for length in range(8)]
    learner, engine = make_learner(loss="sft"), SteadyEngine([(3,)], 16, 16)

    def train(checkpointer, stop_at=0):
        def check(batch_number):
            if batch_number == stop_at:
                raise Stopped
            return batch_number / 10

        state = learner.init(PARAMS, 0)
        return train_policy(state, learner, engine, demonstrations, check, schedule, seed=3, checkpointer=checkpointer)

    whole, checks, shown = train(None)
    checkpointer = Checkpointer(tmp_path / "checkpoints", keep=1)
    for stop_at, saved in ((2, []), (4, [2]), (6, [4])):
        with pytest.raises(Stopped):
            train(checkpointer, stop_at)
        assert checkpointer.steps() == saved
    resumed, resumed_checks, resumed_shown = train(checkpointer)
    assert bits(resumed) == bits(whole)
    assert (resumed_checks, resumed_shown) == (checks, shown)
    assert [check["step"] for check in resumed_checks] == [2, 4, 6]


def test_checkpoints_stay_until_the_model_is_made_and_only_one_process_writes_them(cache):
    def stop(checkpointer):
        checkpointer.save(50, {"a": np.zeros(2)}, {})
        assert obtain({"seed": 0}, lambda other: other is None and make(other), SMALL, TOKENIZER)[1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain({"seed": 0}, stop, SMALL, TOKENIZER)
    (model,) = (path for path in (cache / "warm-start").iterdir() if not path.name.startswith("."))
    shutil.rmtree(model)

    def go_on(checkpointer):
        assert checkpointer.steps() == [50]
        return make(checkpointer)

    folder, _ = obtain({"seed": 0}, go_on, SMALL, TOKENIZER)
    assert list((cache / "warm-start").iterdir()) == [folder]


def test_one_of_several_processes_keeps_no_checkpoints_as_orbax_would_wait_for_the_others(cache, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    given = []
    obtain({"seed": 0}, lambda checkpointer: given.append(checkpointer) or make(checkpointer), SMALL, TOKENIZER)
    assert given == [None]
