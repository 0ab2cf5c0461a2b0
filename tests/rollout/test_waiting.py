"""Deadlines begin when work begins: an episode that waits for a slot of the engine is not charged for the wait."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from compiling import drawn
from counter_environment import CounterEnvironment
from patience import patience

from cojax import environment
from cojax.environment import waiting
from cojax.explorer.llm import chat_client as policy_model
from cojax.explorer.llm.chat_client import PolicyModel
from cojax.explorer.llm.chat_model import Budget
from cojax.host import background
from cojax.host.background import run_on_thread
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.rollout import collect, forwards
from cojax.rollout.chat import Chat, PolicyActors, no_document
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.rollout.engine import Completion, Sampling, Weights
from cojax.rollout.local import LocalEngine
from cojax.rollout.vocabulary import word_tokenizer
from cojax.run.explorers import ATTEMPTERS
from cojax.types import Action, Message
from cojax.validation import Attempts

CHAT = Chat(word_tokenizer([], ["count to", "ok"], CounterEnvironment().tools()), no_document)


@pytest.fixture
def skip(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Advances the clock of deadlines by so many seconds, and lets every watcher look at it."""
    ahead, real = [0.0], environment.running
    for module in (environment, collect, policy_model):
        monkeypatch.setattr(module, "running", lambda: real() + ahead[0])
    monkeypatch.setattr(background, "_CALL_INTERVAL_S", 0.01)

    def skip(seconds: float) -> None:
        ahead[0] += seconds
        time.sleep(0.2)  # four looks of a collector, twenty of a model

    return skip


@pytest.fixture
def engine():
    config = ModelConfig(len(CHAT.tokenizer), 32, 48, 1, 2, 1, 16, max_position_embeddings=256)
    running = LocalEngine(config, slots=1, max_length=128, prefill_rows=1)
    running.load(Weights(0, lambda: to_hf(config, drawn(config, 0))))
    yield running
    running.close()


def until_one_waits(engine: LocalEngine) -> None:
    """Returns once a session waits for a slot, or after 30 seconds."""
    deadline = time.monotonic() + patience(30)
    while not engine._waiting_events and time.monotonic() < deadline:
        time.sleep(0.001)


def play(engine: LocalEngine, environment: CounterEnvironment) -> list[tuple[str, str]]:
    """How two episodes of one group end, which share one slot."""
    limits = Limits(2, environment_deadline=1e6, engine_deadline=600.0, retries=0, error_rate=1.0, concurrency=2)
    actors = PolicyActors(engine, CHAT, Sampling(max_tokens=4))
    collector = EpisodeCollector(actors, environment, limits, group_size=2)
    groups = collector.collect(environment.tasks("train", 1), seed=(0,), label="0")
    return [(trajectory.outcome, trajectory.error) for trajectory in groups[0].trajectories]


def test_an_episode_that_waits_for_a_slot_does_not_hang(engine: LocalEngine, skip: Callable[[float], None]) -> None:
    """Whoever has the slot keeps it for longer than the engine's deadline: in a slow world, as with a slow model."""

    begun = threading.Event()

    def slow(task: object, step: int) -> None:
        if not begun.is_set():
            begun.set()
            until_one_waits(engine)
            skip(1_000.0)

    assert {outcome for outcome, _ in play(engine, CounterEnvironment(slow))} <= {"finished", "truncated"}


def test_the_deadline_of_a_completion_holds_once_it_has_a_slot(
    engine: LocalEngine, skip: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, real = threading.Event(), forwards.decode

    def hangs_once(*arguments: object) -> object:
        if not stuck.is_set():
            stuck.set()
            until_one_waits(engine)
            skip(1_000.0)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(forwards, "decode", hangs_once)
    ends = play(engine, CounterEnvironment())
    assert ends.count(("engine_error", "act took longer than 600 s and was abandoned on its thread")) == 1


def test_a_reply_of_the_policy_that_waits_for_a_slot_is_waited_for(skip: Callable[[float], None]) -> None:
    class Full:
        """An engine whose only slot becomes free late."""

        def generate(self, prompt: object, sampling: Sampling, *, session: str, seed: object) -> Completion:
            with waiting():
                skip(1_000.0)
            return Completion(CHAT.encode_action(Action("ok")), (), 7, "stop")

        def release(self, session: str) -> None:
            pass

    model = PolicyModel(Full(), CHAT, engine_deadline=600.0)  # type: ignore[arg-type]
    assert model.reply([Message("user", "ok")], budget=model.begin(), seed=0, place="p").text == "ok"


def test_attempts_that_share_a_slot_take_turns(engine: LocalEngine) -> None:
    """One that is over frees the slot for the next: a wait that is not charged must not last for ever."""
    config = SimpleNamespace(seed=0, sampling=SimpleNamespace(temperature=1.0, max_tokens=4))
    explorer = SimpleNamespace(place="3/1", remaining_budget=lambda: Budget(10**6, 10**6, time.monotonic() + 600.0))
    attempters = ATTEMPTERS["policy"](config, SimpleNamespace(engine=engine, chat=CHAT))
    (task,) = CounterEnvironment().tasks("train", 1)
    result = run_on_thread(
        "attempts", lambda: Attempts(attempters, 3, 2)(CounterEnvironment(), task, explorer, environment.play)
    ).result(timeout=patience(120))
    assert "of 3 attempts on the query alone" in result.evidence[0]
