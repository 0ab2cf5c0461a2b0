"""Seven worlds with a hole each, as strangers would write them: functions named after the hole make them."""

from __future__ import annotations

import dataclasses
import datetime
import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from cojax.types import Action, Call, Evaluation, Message, Observation, Task
from environments.tools import ToolEnvironment

# ---- A judge that forgets part of the state: a pantry whose judge looks at what is there, not at how much.


def put(world: dict, item: str, amount: int) -> str:
    """Put an amount of an item on a shelf."""
    world["shelf"][item] = world["shelf"].get(item, 0) + amount
    return f"{item}: {world['shelf'][item]}"


def label(world: dict, item: str, text: str) -> str:
    """Stick a label on an item."""
    if item not in world["shelf"]:
        raise ValueError(f"no {item} on the shelf")
    world["labels"][item] = text
    return "ok"


def forgetful():
    def judge(task, world, answer, finished):
        return float(finished and task.setup["want"] in world["shelf"])

    goals = [("rice", 3, "dry"), ("figs", 2, "sweet"), ("oats", 5, "for breakfast")]
    tasks = [
        {
            "query": f"Put {amount} {item} on the shelf and label it {text!r}.",
            "setup": {"shelf": {"salt": 1}, "labels": {}, "want": item},
            "solution": [
                {"name": "put", "arguments": {"item": item, "amount": amount}},
                {"name": "label", "arguments": {"item": item, "text": text}},
            ],
        }
        for item, amount, text in goals
    ]
    return ToolEnvironment(
        "pantry", [put, label], lambda setup: setup, [task["setup"] for task in tasks], judge=judge,
        splits={"eval": tasks},
    )  # fmt: skip


# ---- Tasks solved from the start: lamps, some of which are already as they should be. An environment by protocol.


class LampEpisode:
    def __init__(self, task: Task) -> None:
        self.task, self.lamps, self.over = task, dict(task.setup["lamps"]), False

    def reset(self):
        return (Message("user", self.task.query),)

    def tools(self):
        return LAMP_TOOLS

    def step(self, action: Action) -> Observation:
        if self.over or not action.calls:
            return Observation((Message("tool", "nothing to do"),), ok=False, done=self.over)
        replies = []
        for call in action.calls:
            lamp = call.arguments.get("lamp") if isinstance(call.arguments, Mapping) else None
            if call.name == "leave":
                self.over = True
                replies.append("bye")
            elif call.name == "switch" and isinstance(lamp, str) and lamp in self.lamps:
                self.lamps[lamp] = not self.lamps[lamp]
                replies.append("on" if self.lamps[lamp] else "off")
            else:
                return Observation((Message("tool", "no such lamp"),), ok=False)
        return Observation(tuple(Message("tool", reply) for reply in replies), done=self.over)

    def state(self):
        return {"lamps": dict(self.lamps), "left": self.over}

    def affordances(self):
        switches = [Action(calls=(Call("switch", {"lamp": lamp}),)) for lamp in sorted(self.lamps)]
        return () if self.over else (*switches, Action(calls=(Call("leave"),)))

    def evaluate(self) -> Evaluation:
        return Evaluation(float(self.lamps == self.task.setup["goal"]))

    def close(self) -> None:
        pass


def _tool(name: str, **properties: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": schema}}


LAMP_TOOLS = (_tool("switch", lamp="string"), _tool("leave"))


class Lamps:
    name = "lamps"

    def __init__(self, solved: bool) -> None:
        self.solved = solved

    def tools(self):
        return LAMP_TOOLS

    def tasks(self, split: str, count: int, seed: int = 0):
        if split not in ("train", "test"):
            raise KeyError(split)
        tasks = []
        for number in range(min(count, 6)):
            start = {"hall": False, "desk": bool(number % 2), "bed": False}
            goal = dict(start) if self.solved and number == 1 else {**start, "hall": True}
            solution = tuple(Action(calls=(Call("switch", {"lamp": lamp}),)) for lamp in ("hall",))
            solution = (*solution, Action(calls=(Call("leave"),)))
            if goal == start:
                solution = (Action(calls=(Call("switch", {"lamp": "hall"}),)),) * 2 + solution[-1:]
            tasks.append(Task("lamps", f"{split} {number}: light the hall", {"lamps": start, "goal": goal}, solution))
        return tuple(tasks)

    def start(self, task: Task):
        return LampEpisode(task)

    def phrase(self, steps):
        return None


def solved():
    return Lamps(solved=True)


# ---- A module-level cache: a library that keeps the books of a branch between episodes.

_BRANCHES: dict[str, Library] = {}


@dataclasses.dataclass
class Library:
    books: dict[str, str]
    log: list[str] = dataclasses.field(default_factory=list)

    def state(self):
        return {"books": dict(self.books)}


def lend(world: Library, title: str, reader: str) -> str:
    """Lend a book to a reader."""
    if world.books.get(title) != "":
        raise ValueError(f"{title} is not here")
    world.books[title] = reader
    return "lent"


def take_back(world: Library, title: str) -> str:
    """Take a book back."""
    world.books[title] = ""
    return "back"


def cached():
    def open_branch(setup):
        if setup["branch"] not in _BRANCHES:
            _BRANCHES[setup["branch"]] = Library(dict.fromkeys(setup["titles"], ""))
        return _BRANCHES[setup["branch"]]

    titles = ["emma", "ulysses", "walden"]
    tasks = [
        {
            "query": f"Lend {title} to {reader}.",
            "setup": {"branch": f"branch {number}", "titles": titles},
            "solution": [{"name": "lend", "arguments": {"title": title, "reader": reader}}],
        }
        for number, (title, reader) in enumerate(zip(titles, ("ada", "bo", "cy"), strict=True))
    ]
    return ToolEnvironment("library", [lend, take_back], open_branch, [tasks[0]["setup"]], splits=tasks)


# ---- A cache of another kind: a look-up remembers what another episode asked for.

_SEEN: dict[str, str] = {}


def weigh(world: dict, parcel: str) -> str:
    """Weigh a parcel."""
    if parcel not in world["parcels"]:
        raise ValueError("no such parcel")
    return _SEEN.setdefault(parcel, f"{world['parcels'][parcel]} g")


def wrap(world: dict, parcel: str) -> str:
    """Wrap a parcel, which makes it heavier."""
    world["parcels"][parcel] += 20
    world["wrapped"] = sorted({*world["wrapped"], parcel})
    return "wrapped"


def remembered():
    tasks = [
        {
            "query": f"Wrap {parcel} and tell me what it weighs then.",
            "setup": {"parcels": {"tea": 100, "cups": 900 + weight}, "wrapped": []},
            "solution": [
                {"name": "wrap", "arguments": {"parcel": parcel}},
                {"name": "weigh", "arguments": {"parcel": parcel}},
                {"name": "finish", "arguments": {"answer": f"{grams} g"}},
            ],
        }
        for parcel, weight, grams in (("tea", 1, 120), ("cups", 2, 922))
    ]
    return ToolEnvironment("parcels", [weigh, wrap], lambda setup: setup, [tasks[0]["setup"]], splits=tasks)


# ---- A world that reads a clock: a diary of SQLite that dates its entries, and one that greets by the hour.


class Diary:
    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)
        self.connection.execute("CREATE TABLE entries (day TEXT DEFAULT (date('now')), text TEXT)")
        for text in setup["entries"]:
            self.connection.execute("INSERT INTO entries VALUES ('2020-01-01', ?)", (text,))

    def state(self):
        return {"entries": [list(row) for row in self.connection.execute("SELECT day, text FROM entries")]}

    def close(self):
        self.connection.close()


def note(world: Diary, text: str) -> str:
    """Write a note into the diary."""
    world.connection.execute("INSERT INTO entries (text) VALUES (?)", (text,))
    return "noted"


def read(world: Diary) -> list[str]:
    """Read all notes."""
    return [row[0] for row in world.connection.execute("SELECT text FROM entries")]


def _diary_tasks(texts):
    return [
        {
            "query": f"Note {text!r}.",
            "setup": {"entries": ["begun"]},
            "solution": [{"name": "note", "arguments": {"text": text}}],
        }
        for text in texts
    ]


def dated():
    return ToolEnvironment("diary", [note, read], Diary, [{"entries": []}], splits=_diary_tasks(("rain", "sun")))


def stamp(world: dict, text: str) -> str:
    """Stamp a text."""
    world["stamps"].append({"text": text, "at": time.time()})
    return "stamped"


def stamped():
    tasks = [
        {
            "query": "Stamp 'paid'.",
            "setup": {"stamps": []},
            "solution": [{"name": "stamp", "arguments": {"text": "paid"}}],
        }
    ]

    def judge(task, world, answer, finished):
        return float(finished and [entry["text"] for entry in world["stamps"]] == ["paid"])

    return ToolEnvironment("stamps", [stamp], lambda setup: setup, [{"stamps": []}], splits=tasks, judge=judge)


def greeted():
    """A shop that sells only before noon of its own weekday."""

    def sell(world: dict, item: str) -> str:
        """Sell an item."""
        if datetime.datetime.now().weekday() >= 5:
            raise ValueError("closed")
        world["sold"].append(item)
        return "sold"

    tasks = [
        {"query": f"Sell {item}.", "setup": {"sold": []}, "solution": [{"name": "sell", "arguments": {"item": item}}]}
        for item in ("bread", "milk")
    ]
    return ToolEnvironment("shop", [sell], lambda setup: setup, [{"sold": []}], splits=tasks)


# ---- A state that NaN makes unreadable: an account that reads amounts as text.


class AccountEpisode:
    def __init__(self, task: Task) -> None:
        self.task, self.balance, self.closed = task, float(task.setup["balance"]), False

    def reset(self):
        return (Message("user", self.task.query),)

    def tools(self):
        return ACCOUNT_TOOLS

    def step(self, action: Action) -> Observation:
        if len(action.calls) != 1:
            return Observation((Message("tool", "one call, please"),), ok=False)
        (call,) = action.calls
        if call.name == "close":
            self.closed = True
            return Observation((Message("tool", "closed"),), done=True)
        try:
            if call.name != "deposit":
                raise ValueError("unknown tool")
            self.balance += float(call.arguments["amount"])
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            return Observation((Message("tool", f"error: {error}"),), ok=False)
        return Observation((Message("tool", f"balance {self.balance:.2f}"),))

    def state(self):
        return {"balance": self.balance, "closed": self.closed}

    def affordances(self):
        return (Action(calls=(Call("deposit", {"amount": "10"}),)), Action(calls=(Call("close"),)))

    def evaluate(self) -> Evaluation:
        return Evaluation(float(self.closed and self.balance == self.task.setup["goal"]))

    def close(self) -> None:
        pass


ACCOUNT_TOOLS = (_tool("deposit", amount="string"), _tool("close"))


class Accounts:
    name = "accounts"

    def tools(self):
        return ACCOUNT_TOOLS

    def tasks(self, split: str, count: int, seed: int = 0):
        if split != "eval":
            raise ValueError(f"no split {split}")
        return tuple(
            Task(
                "accounts",
                f"Deposit {amount}.",
                {"balance": 100, "goal": 100 + amount},
                (Action(calls=(Call("deposit", {"amount": str(amount)}),)), Action(calls=(Call("close"),))),
            )
            for amount in range(5, 5 + min(count, 4))
        )

    def start(self, task: Task):
        return AccountEpisode(task)

    def phrase(self, steps):
        return None


def unreadable():
    return Accounts()


def overflowing():
    """A tank of plain JSON whose level may become infinite."""

    def fill(world: dict, litres: float) -> str:
        """Fill some litres into the tank."""
        world["level"] = world["level"] + litres
        return f"{world['level']}"

    tasks = [
        {
            "query": "Fill 5 litres into the tank.",
            "setup": {"level": 1.0},
            "solution": [{"name": "fill", "arguments": {"litres": 5.0}}],
        }
    ]
    return ToolEnvironment("tank", [fill], lambda setup: setup, [{"level": 0.0}], splits=tasks)


# ---- A judge that always pays.


def generous():
    def judge(task, world, answer, finished):
        return 1.0

    setups = [{"shelf": {"salt": 1}, "labels": {}, "number": number} for number in range(3)]
    tasks = [
        {"query": f"Put rice there, {setup['number']}.", "setup": setup,
         "solution": [{"name": "put", "arguments": {"item": "rice", "amount": 1}}]}
        for setup in setups
    ]  # fmt: skip
    return ToolEnvironment("free", [put, label], lambda setup: setup, setups, judge=judge, splits={"test": tasks})


def generous_when_finished():
    """Pays at the end of an episode, whatever happened. It has setups alone."""
    setups = [{"shelf": {}, "labels": {}, "number": number} for number in range(3)]
    return ToolEnvironment(
        "free", [put, label], lambda setup: setup, setups,
        judge=lambda task, world, answer, finished: float(finished),
    )  # fmt: skip


# ---- An answer found as a substring.


def look(world: dict, name: str) -> str:
    """Look up the phone number of a person."""
    if name not in world["people"]:
        raise ValueError("unknown")
    return world["people"][name]


def substring():
    people = {"ada": "555-0117", "bo": "555-0192", "cy": "555-0128"}

    def judge(task, world, answer, finished):
        return float(finished and answer is not None and task.setup["people"][task.setup["who"]] in answer)

    return _phone_book(people, judge)


def reversed_substring():
    """The answer need only be a part of the expected one."""
    people = {"ada": "at the harbour", "bo": "in the old mill", "cy": "by the church"}

    def judge(task, world, answer, finished):
        return float(bool(answer) and answer in task.setup["people"][task.setup["who"]])

    return _phone_book(people, judge)


def counted():
    """A sum that no tool shows, found anywhere in the answer."""

    def count(world: dict) -> list[str]:
        """List the boxes."""
        return list(world["boxes"])

    setups = [{"boxes": {"red": number, "blue": 2 * number + 1}} for number in (3, 7)]

    def weight(world: dict, box: str) -> int:
        """Tell the weight of a box."""
        return world["boxes"][box]

    def judge(task, world, answer, finished):
        return float(str(sum(task.setup["boxes"].values())) in (answer or ""))

    tasks = [
        {"query": "How heavy are all boxes together?", "setup": setup,
         "solution": [{"name": "count", "arguments": {}},
                      *({"name": "weight", "arguments": {"box": box}} for box in setup["boxes"]),
                      {"name": "finish", "arguments": {"answer": str(sum(setup["boxes"].values()))}}]}
        for setup in setups
    ]  # fmt: skip
    return ToolEnvironment("boxes", [count, weight], lambda setup: setup, setups, judge=judge, splits=tasks)


def _phone_book(people, judge):
    tasks = [
        {
            "query": f"What is listed for {who}?",
            "setup": {"people": people, "who": who},
            "solution": [
                {"name": "look", "arguments": {"name": who}},
                {"name": "finish", "arguments": {"answer": people[who]}},
            ],
        }
        for who in people
    ]
    return ToolEnvironment("phones", [look], lambda setup: setup, [tasks[0]["setup"]], judge=judge, splits=tasks)


# ---- A state that leaves out what the judge then cannot see either.


class Basket:
    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.goods, self.notes = dict(setup["goods"]), []

    def state(self):
        return {"goods": self.goods}


def pick(world: Basket, name: str) -> str:
    """Pick something."""
    world.goods[name] = 1
    return "picked"


def scribble(world: Basket, text: str) -> str:
    """Leave a note for the shop."""
    world.notes.append(text)
    return "noted"


def notes(world: Basket) -> str:
    """Read the notes."""
    return ", ".join(world.notes)


def hidden():
    tasks = [
        {
            "query": "Pick milk and leave the note 'urgent'.",
            "setup": {"goods": {}, "number": number},
            "solution": [
                {"name": "pick", "arguments": {"name": "milk"}},
                {"name": "scribble", "arguments": {"text": "urgent"}},
            ],
        }
        for number in range(2)
    ]
    return ToolEnvironment("basket", [pick, scribble, notes], Basket, [tasks[0]["setup"]], splits=tasks)


# ---- A question without official solutions: the answer is looked for anywhere in what is submitted.


class QuestionEpisode:
    def __init__(self, task: Task, is_strict: bool) -> None:
        self.task, self.is_strict, self.answer = task, is_strict, None

    def reset(self):
        return (Message("user", self.task.query),)

    def tools(self):
        return QUESTION_TOOLS

    def step(self, action: Action) -> Observation:
        if not action.calls:
            return Observation((Message("tool", "call a tool"),), ok=False)
        call = action.calls[0]
        if call.name == "submit":
            self.answer = str(call.arguments.get("answer"))
            return Observation((Message("tool", "thanks"),), done=True)
        fact = self.task.setup["facts"].get(str(call.arguments.get("key")))
        return Observation((Message("tool", str(fact)),), ok=fact is not None)

    def state(self):
        return {"answer": self.answer}

    def affordances(self):
        return ()

    def evaluate(self) -> Evaluation:
        truth = self.task.setup["facts"][self.task.setup["key"]]
        answer = self.answer or ""
        return Evaluation(float(answer.strip() == truth if self.is_strict else truth in answer))

    def close(self) -> None:
        pass


QUESTION_TOOLS = (_tool("get", key="string"), _tool("submit", answer="string"))


class Questions:
    name = "questions"

    def __init__(self, is_strict: bool) -> None:
        self.is_strict = is_strict

    def tools(self):
        return QUESTION_TOOLS

    def tasks(self, split: str, count: int, seed: int = 0):
        if split != "train":
            raise ValueError(f"no split {split}")
        facts = {"alpha": "kestrel", "beta": "osprey", "gamma": "harrier"}
        tasks = [Task("questions", f"Which bird is {key}?", {"facts": facts, "key": key}) for key in facts]
        return tuple(tasks[:count])

    def start(self, task: Task):
        return QuestionEpisode(task, self.is_strict)

    def phrase(self, steps):
        return None


def unsolved_substring():
    return Questions(is_strict=False)
