"""The policy as its own explorer: its samples are read like any model's reply, and noise makes no task."""

import contextlib
import json
import random
import threading
import time
from concurrent.futures import Future

import pytest
from chat_server import Answer
from evolving import EPISODE, OFFICE, SIGNALS
from models import MAIL, TWO, model
from patience import patience

from cojax.environment import EngineError, OutOfContext
from cojax.explorer.llm.chat_client import PolicyModel
from cojax.explorer.llm.chat_model import ChatFailure, Journal
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.host import background
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.policy.transformer import initialize
from cojax.rollout.chat import Chat
from cojax.rollout.engine import Completion, Sampling, Weights
from cojax.rollout.local import LocalEngine
from cojax.rollout.vocabulary import train_byte_tokenizer
from cojax.settings.tree import LLMSettings
from cojax.synthesis import EVOLUTIONS, EvolutionInputs, Synthesis, synthesize
from cojax.types import Action, Message
from cojax.validation import Attempts, Validation

DOCUMENTED = [json.dumps(tool) for tool in OFFICE.tools()]
CHAT = Chat(train_byte_tokenizer([*DOCUMENTED, "You explore a software environment by acting in it."], 1024))


class Taught:
    """An engine whose policy reads its prompt and answers as the scripted model does."""

    busy_seconds = 0.0

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.guard = threading.Lock()

    def load(self, weights: Weights) -> None: ...

    def generate(self, prompt, sampling: Sampling, *, session: str, seed) -> Completion:
        with self.guard:
            assert session not in self.sessions
            self.sessions.add(session)
        text = CHAT.tokenizer.decode(list(prompt), skip_special_tokens=False)
        messages = []
        for piece in text.split("<|im_start|>")[1:-1]:
            role, _, content = piece.partition("\n")
            messages.append({"role": role, "content": content.partition("<|im_end|>")[0]})
        answer: Answer = model()({"messages": messages, "seed": seed[0]}, None)  # type: ignore[arg-type]
        tokens = CHAT.encode_action(Action(answer.text or ""))
        return Completion(tokens, (-0.1,) * len(tokens), 7, "stop")

    def release(self, session: str) -> None:
        with self.guard:
            self.sessions.discard(session)

    def close(self) -> None: ...


def evolve(chat_model: PolicyModel, runs: int = 2) -> Synthesis:
    explorer = LLMExplorer(chat_model, runs=runs, steps=8, kind="policy", attempt_turns=4)
    inputs = EvolutionInputs(OFFICE, explorer, SIGNALS[:1], ["3-x-0"], lambda id: EPISODE, None, 4, (0, 9))
    validate = Validation(OFFICE, attempts=Attempts(LLMExplorer.attempters, 2, 4), safe=True)
    return synthesize(
        EVOLUTIONS["feedback"](inputs), OFFICE, explorer, validate, lambda id: False,
        budget=4, per_context=4, seed=(0, 9), step=10,
    )  # fmt: skip


def test_a_policy_that_can_makes_tasks_of_its_own() -> None:
    engine, journal = Taught(), Journal()
    result = evolve(PolicyModel(engine, CHAT, name="small", journal=journal))
    assert [task.query for task in result.tasks] == [MAIL["query"], TWO["query"]]
    assert result.tasks[0].lineage is not None
    assert result.tasks[0].lineage.explorer.startswith("policy:small@")
    assert engine.sessions == set()
    assert result.figures["calls"] == len(list(journal.read()))
    record = next(journal.read("0/9/0/reflect"))
    assert record["sent"]["weights_version"] == 7
    assert record["sent"]["messages"][0]["role"] == "system"


class Noise(Taught):
    """An engine that samples all tokens with the same probability."""

    def generate(self, prompt, sampling: Sampling, *, session: str, seed) -> Completion:
        if len(prompt) > 6_000:
            raise OutOfContext(f"prompt of {len(prompt)} tokens leaves no room")
        rng = random.Random(repr(seed))
        tokens = tuple(rng.choices(range(len(CHAT.tokenizer)), k=sampling.max_tokens))
        return Completion(tokens, (-7.0,) * len(tokens), 0, "length" if rng.random() < 0.5 else "stop")


def lost(result: Synthesis) -> None:
    """Nothing came of it, and it says why."""
    assert result.tasks == ()
    assert result.counts["explorer_failures"] == 1
    assert result.figures["failures"]
    assert set(result.figures["failures"]) <= {"invalid", "truncated", "empty"}
    assert result.reasons()[0].endswith("(1×)")


def test_noise_ends_makes_no_task_and_says_so() -> None:
    lost(evolve(PolicyModel(Noise(), CHAT, settings=LLMSettings(max_tokens=40))))


@pytest.mark.real
def test_the_noise_of_a_real_random_policy_ends_likewise() -> None:
    config = ModelConfig(1040, 32, 48, 1, 2, 1, 16, max_position_embeddings=8192)
    params = initialize(config, 0)
    with contextlib.closing(LocalEngine(config, slots=2, max_length=6144)) as engine:
        engine.load(Weights(0, lambda: to_hf(config, params)))
        lost(evolve(PolicyModel(engine, CHAT, settings=LLMSettings(max_tokens=12)), runs=1))


def test_what_the_engine_refuses_is_a_failure_of_its_kind() -> None:
    chat_model = PolicyModel(Noise(), CHAT, settings=LLMSettings(max_tokens=12, max_tokens_per_evolution=20_000))
    with pytest.raises(ChatFailure, match="too_long: prompt of"):
        chat_model.reply([Message("user", "one two " * 2_000)], budget=chat_model.begin(), seed=0, place="p")
    with pytest.raises(ChatFailure, match="budget: "):
        chat_model.reply([Message("user", "one two " * 9_000)], budget=chat_model.begin(), seed=0, place="p")

    class Broken(Taught):
        def __init__(self, error: Exception) -> None:
            super().__init__()
            self.error = error

        def generate(self, *_: object, **__: object) -> Completion:
            raise self.error

    for error, kind in ((EngineError("gone"), "server"), (OutOfContext("full"), "too_long")):
        chat_model = PolicyModel(Broken(error), CHAT)
        with pytest.raises(ChatFailure, match=f"{kind}: {error}"):
            chat_model.reply([Message("user", "hi")], budget=chat_model.begin(), seed=0, place="p")
        assert chat_model.figures()["failures"] == {kind: 1}


class Hanging(Taught):
    """An engine that never answers, until its session is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def generate(self, prompt, sampling: Sampling, *, session: str, seed) -> Completion:
        self.released.wait(patience(10))
        raise EngineError("released")

    def release(self, session: str) -> None:
        self.released.set()


@pytest.mark.parametrize(
    ("engine_deadline", "deadline", "kind"),
    [(0.1, 3600.0, "timeout"), (600.0, 0.1, "deadline"), (600.0, 3600.0, "stopped")],
)
def test_an_engine_that_hangs_is_given_up(engine_deadline: float, deadline: float, kind: str) -> None:
    engine, settings = Hanging(), LLMSettings(max_tokens=12, deadline=deadline, max_requests_per_evolution=4_000)
    chat_model = PolicyModel(engine, CHAT, settings=settings, engine_deadline=engine_deadline)
    budget = chat_model.begin()
    if kind == "stopped":
        threading.Timer(0.1, budget.close).start()
    began = time.monotonic()
    with pytest.raises(ChatFailure, match=f"{kind}: "):
        chat_model.reply([Message("user", "hi")], budget=budget, seed=0, place="p")
    assert time.monotonic() - began < patience(3)
    assert engine.released.is_set()
    assert chat_model.figures()["failures"] == {kind: 1}
    assert budget.requests == 4_000 - 1


def test_a_completion_that_comes_as_its_time_is_looked_at_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    come = threading.Event()

    class Late(Taught):
        def generate(self, prompt, sampling: Sampling, *, session: str, seed) -> Completion:
            time.sleep(0.1)
            return Completion(CHAT.encode_action(Action("hi")), (), 7, "stop")

        def release(self, session: str) -> None:
            come.set()

    class Slow(Future):  # type: ignore[type-arg]
        """It comes between the end of a wait for it and the next look."""

        def result(self, timeout: float | None = None):
            try:
                return super().result(timeout)
            except TimeoutError:
                come.wait(patience(5))
                raise

    monkeypatch.setattr(background, "Future", Slow)
    monkeypatch.setattr(background, "_CALL_INTERVAL_S", 0.01)
    chat_model = PolicyModel(Late(), CHAT, settings=LLMSettings(max_tokens=12))
    assert chat_model.reply([Message("user", "hi")], budget=chat_model.begin(), seed=0, place="p").text == "hi"


def test_a_timeout_of_the_engine_s_own_is_no_time_that_is_up() -> None:
    class Broken(Taught):
        def generate(self, *_: object, **__: object) -> Completion:
            raise TimeoutError("inside")

    chat_model = PolicyModel(Broken(), CHAT)
    with pytest.raises(TimeoutError, match="inside"):
        chat_model.reply([Message("user", "hi")], budget=chat_model.begin(), seed=0, place="p")
