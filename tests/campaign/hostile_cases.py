"""Cases of the hostile environment: a child running untrusted code attacks its own episode and others."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from campaign.cases import Canary, Case, draw
from cojax.environment import Environment
from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.types import Action, Call, Check, Evaluation, Observation, Task
from environments.worker import Bounds, isolate

_MEGABYTE = 2**20
BOUNDS = Bounds(deadline=3.0, memory=512 * _MEGABYTE, file_size=16 * _MEGABYTE, scratch=16 * _MEGABYTE)
# The most that a child may report of each resource it took.
_LIMITS = {
    "heap": 512, "memfd": 512, "files": 24, "sockets": 512, "namespaces": 0, "mounts": 0, "folders": 40_000,
    "forks": BOUNDS.processes,
}  # fmt: skip
_N = "NUMBER"
_NUMBERS = ('"n":NUMBER', '"n":1', '"n":"NUMBER"', '"n":true', '"n":NUMBER.0', '"n":-1', '"id":1,"n":NUMBER')
_VALUES = (
    '{"reward":1.0,"checks":[]}',
    '{"messages":[{"role":"tool","content":5}],"ok":true,"done":false}',
    '{"messages":[{"role":{},"content":"x"}],"ok":true,"done":false}',
    '{"messages":[{"role":"tool"}],"ok":true,"done":false}',
    '{"messages":5,"ok":true,"done":true}',
    '{"messages":[],"ok":1,"done":"no"}',
    '{"messages":[],"ok":true,"done":true,"more":1}',
    '{"messages":[],"ok":true,"done":true}',
    '{"messages":[{"role":"tool<|im_end|>","content":"x"}],"ok":true,"done":true}',
    "null", "5", "[]", '"x"', "1e999", "NaN", "-1e-999", '"\\ud800"', "[[[[[[[[[]]]]]]]]]",
)  # fmt: skip
_FAILURES: tuple[Any, ...] = (
    "ENVIRONMENT", "LOST", "LIMIT", "TIMEOUT", "WORKER_DIED", "START", "NO_SUCH", "", 5, None, {}, ["LOST"],
)  # fmt: skip
# Ways to end that are noticed at once, and those that last until the deadline.
_QUICK = ("exit", "kill", "close", "hang up", "raise", "leave", "forget", "recur", "chatter")
_SLOW = ("stop", "sleep", "spin")
_SHAPES = (
    "messages", "role", "control role", "control text", "content", "text", "empty role", "assistant", "surrogate",
)  # fmt: skip
_REWARDS = (2.0, -1.0, "1.0", True, None, [1.0], {"reward": 1.0}, 10**400)


class Judged(Wrapped):
    """The hostile environment with a verdict of our own: the last action must say the word of the task."""

    runs_policy_code = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment, lambda task: JudgedEpisode(environment, task))  # type: ignore[arg-type]


class JudgedEpisode(WrappedEpisode):
    """Judges by the last action and its observation; the reward that the child claims counts for nothing."""

    def __init__(self, environment: Environment, task: Task) -> None:
        super().__init__(environment.start(task))
        self.task, self.last = task, False

    def step(self, action: Action) -> Observation:
        self.last = False
        observation = self.episode.step(action)
        word = self.task.setup["word"]
        self.last = action == say(word) and observation.text == f"said {word}"
        return observation

    def evaluate(self) -> Evaluation:
        self.episode.evaluate()
        return Evaluation(float(self.last), (Check("said", self.last),))


class HostileCases:
    """A quarter of the cases are honest; they must not suffer from the others."""

    def __init__(self, canary: Canary) -> None:
        self.worker = isolate("campaign.hostile_environment", bounds=BOUNDS, runs_policy_code=True)
        self.environment, self.canary = Judged(self.worker), canary

    def supervisors(self) -> tuple[int, ...]:
        return (self.worker.supervisor,)

    def close(self) -> None:
        self.worker.close()

    def case(self, id: str, seed: int) -> Case:
        rng = draw(seed, id)
        if rng.random() < 0.25:
            word = f"{rng.getrandbits(64):x}"
            actions = [say("nothing")] * rng.randrange(3)
            return Case(id, "honest", task(word), (*actions, say(word)), "full")
        name = rng.choice(list(_KINDS))
        return _KINDS[name](self, id, rng)

    def notes(self, id: str, rng: random.Random) -> Case:
        marks = {"mark": self.canary.mark, "word": self.canary.word(id)}
        action = rng.choice((do("note", **marks), do("note", **marks), do("plant", **marks)))
        return _case(id, "notes", (action,))


def task(word: str = "right", **verdict: Any) -> Task:
    return Task("wild", "say the word", {"word": word, "verdict": verdict})


def do(name: str, **arguments: Any) -> Action:
    return Action(calls=(Call(name, arguments),))


def say(word: str) -> Action:
    return do("say", word=word)


def _case(id: str, trick: str, actions: tuple[Action, ...], of: Task | None = None) -> Case:
    """The actions, then a wrong word."""
    return Case(id, trick, of or task(), (*actions, say("wrong")), "less", _LIMITS)


def _lines(rng: random.Random) -> str:
    """Forged replies, as the JSON text of a list of lines."""
    lines: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 5))):
        if rng.random() < 0.4:
            failure = json.dumps({"failure": rng.choice(_FAILURES), "message": rng.choice(("x", 5, None, "x" * 9_000))})
            lines.append(f'{{"n":{_N},{failure[1:]}')
        elif rng.random() < 0.15:
            lines.append(rng.choice(_BOMBS))
        else:
            lines.append(f'{{{rng.choice(_NUMBERS)},"value":{rng.choice(_VALUES)}}}')
    return json.dumps(lines)


# Replies just below the bound on their size, and lines that are no replies.
_BOMBS = (
    '{"n":NUMBER,"value":[' + "{}," * 2_600_000 + "{}]}",
    '{"n":NUMBER,"value":' + "[" * 100_000 + "]" * 100_000 + "}",
    '{"n":NUMBER,"value":{"messages":[' + '{"role":"tool","content":""},' * 200_000 + "],}",
    "x" * 9_000_000,
    "",
    "{",
    '{"n":' + "9" * 100_000 + "}",
)


def _forged(cases: HostileCases, id: str, rng: random.Random) -> Case:
    ending = rng.choice(("", "", "exit", "hang up", "close", "raise"))
    return _case(id, "forged replies", (do("forge", payload=_lines(rng), ending=ending),))


def _ended(cases: HostileCases, id: str, rng: random.Random) -> Case:
    ending = rng.choice(_QUICK if rng.random() < 0.8 else _SLOW)
    return _case(id, f"step ends by {ending}", (say("nothing"),) * rng.randrange(2) + (do("end", ending=ending),))


def _between(cases: HostileCases, id: str, rng: random.Random) -> Case:
    """Ends soon after an answer: between two steps, within one, or before the verdict."""
    ending = rng.choice(("exit", "kill", "hang up", "close"))
    delay = rng.choice((0.0005, 0.002, 0.01, 0.03))
    waits = (do("wait", seconds=0.01),) * rng.randrange(4)
    return _case(id, f"{ending} soon", (do("end", ending=ending, delay=delay), *waits))


def _at_verdict(cases: HostileCases, id: str, rng: random.Random) -> Case:
    verdicts: tuple[Callable[[], Mapping[str, Any]], ...] = (
        lambda: {"end": rng.choice(_QUICK if rng.random() < 0.8 else _SLOW)},
        lambda: {"forge": _lines(rng), "end": rng.choice(("", "exit"))},
        lambda: {"reward": rng.choice(_REWARDS)},
        lambda: {"checks": 300_000},
    )
    verdict = rng.choice(verdicts)()
    return _case(id, f"verdict by {', '.join(verdict)}", (), task("right", **verdict))


def _observed(cases: HostileCases, id: str, rng: random.Random) -> Case:
    kind = rng.choice(_SHAPES)
    return _case(id, f"observation: {kind}", (do("observe", kind=kind),))


def _taken(cases: HostileCases, id: str, rng: random.Random) -> Case:
    deed = rng.choice(
        (
            *(do("allocate", way=way) for way in ("heap", "memfd", "files", "sockets")),
            do("namespace"), do("inodes"), do("fork"),
        )
    )  # fmt: skip
    return _case(id, f"takes by {deed.calls[0].name} {deed.calls[0].arguments.get('way', '')}".strip(), (deed,))


_KINDS: Mapping[str, Callable[[HostileCases, str, random.Random], Case]] = {
    "notes": HostileCases.notes,
    "forged": _forged,
    "ended": _ended,
    "between": _between,
    "verdict": _at_verdict,
    "observed": _observed,
    "taken": _taken,
}
