"""Sound worlds, as strangers would write them, whose independent calls commute: an audit finds nothing."""

from __future__ import annotations

import copy
import dataclasses
import sqlite3
from collections.abc import Mapping
from typing import Any

from holed_worlds import ACCOUNT_TOOLS, AccountEpisode, Accounts, Lamps, Questions, label, look, put

from cojax.types import Action, Call, Check, Evaluation, Message, Observation, Task
from environments.tools import ToolEnvironment


def pantry():
    """The pantry, judged by replay."""
    goals = [("rice", 3, "dry"), ("figs", 2, "sweet"), ("oats", 5, "for breakfast")]
    tasks = [
        {
            "query": f"Put {amount} {item} on the shelf and label it {text!r}.",
            "setup": {"shelf": {"salt": 1}, "labels": {}},
            "solution": [
                {"name": "put", "arguments": {"item": item, "amount": amount}},
                {"name": "label", "arguments": {"item": item, "text": text}},
            ],
        }
        for item, amount, text in goals
    ]
    return ToolEnvironment("pantry", [put, label], lambda setup: setup, [tasks[0]["setup"]], splits={"eval": tasks})


def setups_alone():
    """No tasks: setups, a default verdict."""
    setups = [{"shelf": {"salt": number}, "labels": {}} for number in range(1, 5)]
    return ToolEnvironment("pantry", [put, label], lambda setup: setup, setups)


def phones():
    """A question whose answer is compared as a whole, in any case."""
    people = {"ada": "555-0117", "bo": "555-0192"}

    def judge(task, world, answer, finished):
        return float(finished and (answer or "").strip().casefold() == people[task.setup["who"]])

    tasks = [
        {"query": f"What is the number of {who}?", "setup": {"people": people, "who": who},
         "solution": [{"name": "look", "arguments": {"name": who}},
                      {"name": "finish", "arguments": {"answer": people[who]}}]}
        for who in people
    ]  # fmt: skip
    return ToolEnvironment("phones", [look], lambda setup: setup, [tasks[0]["setup"]], judge=judge, splits=tasks)


def lamps():
    """By protocol; `state` hands out a live object, and switching twice undoes itself."""
    return Lamps(solved=False)


class SpokenEpisode(AccountEpisode):
    """The account, which refuses what is not finite, and whose last words are a courtesy that nobody judges."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.said = ""
        self.calls = 0

    def tools(self):
        return ACCOUNT_TOOLS[:1]

    def step(self, action: Action) -> Observation:
        self.calls += 1
        if not action.calls:
            self.said, self.closed = action.text, True
            return Observation(done=True)
        amount = action.calls[0].arguments.get("amount")
        if action.calls[0].name == "close" or not (isinstance(amount, str) and amount.isdecimal() and len(amount) < 9):
            return Observation((Message("tool", "error: expected digits"),), ok=False)
        return super().step(action)

    def state(self):
        return {"balance": self.balance, "said": self.said, "over": self.closed, "calls": self.calls}

    def affordances(self):
        return (Action(calls=(Call("deposit", {"amount": "10"}),)), Action())

    def evaluate(self) -> Evaluation:
        return Evaluation(float(self.closed and self.balance == self.task.setup["goal"]))


class SpokenAccounts(Accounts):
    def tasks(self, split: str, count: int, seed: int = 0):
        return tuple(
            dataclasses.replace(task, solution=(task.solution[0], Action("I have deposited it for you.")))
            for task in super().tasks(split, count, seed)
        )

    def start(self, task: Task):
        return SpokenEpisode(task)


def spoken():
    """Ends by a text, counts its calls in the state, and judges the balance alone."""
    return SpokenAccounts()


class Shop:
    def __init__(self, setup: Mapping[str, Any]) -> None:
        self.database = sqlite3.connect(":memory:", check_same_thread=False)
        self.database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER CHECK (count >= 0))")
        self.database.execute("CREATE TABLE orders (buyer TEXT, item TEXT, count INTEGER)")
        self.database.executemany("INSERT INTO stock VALUES (?, ?)", setup["stock"].items())
        self.database.commit()

    def state(self):
        orders = self.database.execute("SELECT buyer, item, count FROM orders ORDER BY 1, 2, 3")
        stock = self.database.execute("SELECT item, count FROM stock")
        return {"orders": [list(row) for row in orders], "stock": dict(stock)}

    def close(self):
        self.database.close()


def order(world: Shop, buyer: str, item: str, count: int) -> str:
    """Order some of an item for a buyer."""
    with world.database:
        changed = world.database.execute(
            "UPDATE stock SET count = count - ? WHERE item = ? AND ? > 0", (count, item, count)
        ).rowcount
        if not changed:
            raise ValueError(f"no {item}")
        world.database.execute("INSERT INTO orders VALUES (?, ?, ?)", (buyer, item, count))
    return "ordered"


def stock_of(world: Shop, item: str) -> int:
    """How many of an item are left."""
    row = world.database.execute("SELECT count FROM stock WHERE item = ?", (item,)).fetchone()
    if row is None:
        raise ValueError(f"no {item}")
    return row[0]


def shop():
    """SQLite, two orders that commute, and a question."""
    setup = {"stock": {"pens": 12, "pads": 7, "inks": 3}}
    tasks = [
        {
            "query": f"Order {count} pens for ada and one pad for bo, then tell me how many pens are left.",
            "setup": setup,
            "solution": [
                {"name": "order", "arguments": {"buyer": "ada", "item": "pens", "count": count}},
                {"name": "order", "arguments": {"buyer": "bo", "item": "pads", "count": 1}},
                {"name": "stock_of", "arguments": {"item": "pens"}},
                {"name": "finish", "arguments": {"answer": str(12 - count)}},
            ],
        }
        for count in (2, 3, 4)
    ]
    return ToolEnvironment("shop", [order, stock_of], Shop, [setup], splits=tasks)


@dataclasses.dataclass
class Board:
    cards: dict[str, str]
    history: list[str] = dataclasses.field(default_factory=list)
    token: str = ""

    def state(self):
        return {"cards": dict(self.cards), "history": list(self.history)}

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self.history.append(name)
        if name == "show":
            return ", ".join(f"{card} in {column}" for card, column in sorted(self.cards.items()))
        if name == "move" and arguments.get("card") in self.cards and arguments.get("column") in ("todo", "done"):
            self.cards[arguments["card"]] = arguments["column"]
            return "moved"
        self.history.pop()
        raise ValueError("no such card or column")


def board():
    """Documents as tools; partial rewards; the judge compares cards and never the history of calls."""
    documents = [
        {"name": "show", "description": "Show the board.", "parameters": {"type": "object", "properties": {}}},
        {"name": "move", "description": "Move a card to a column.", "parameters": {
            "type": "object", "required": ["card", "column"],
            "properties": {"card": {"type": "string"}, "column": {"type": "string", "enum": ["todo", "done"]}}}},
    ]  # fmt: skip

    def judge(task, world, answer, finished):
        goal = task.setup["goal"]
        checks = [Check(card, world.cards.get(card) == column) for card, column in goal.items()]
        share = sum(check.passed for check in checks) / len(checks)
        return Evaluation(1.0 if finished and share == 1 else share / 2, tuple(checks))

    cards = {"plan": "todo", "build": "todo", "test": "todo"}
    tasks = [
        {
            "query": f"Everything but {left} is done. Move the cards.",
            "setup": {"cards": cards, "goal": {card: "todo" if card == left else "done" for card in cards}},
            "solution": [
                {"name": "show", "arguments": {}},
                *({"name": "move", "arguments": {"card": card, "column": "done"}} for card in cards if card != left),
            ],
        }
        for left in cards
    ]
    return ToolEnvironment(
        "board", documents, lambda setup: Board(copy.deepcopy(setup["cards"])), [tasks[0]["setup"]],
        judge=judge, splits=tasks,
    )  # fmt: skip


class QuizEpisode:
    """A question in one text: there are no tools at all."""

    def __init__(self, task: Task) -> None:
        self.task, self.text = task, None

    def reset(self):
        return (Message("system", "Answer by a number alone."), Message("user", self.task.query))

    def tools(self):
        return ()

    def step(self, action: Action) -> Observation:
        self.text = action.text[:1_000]
        return Observation(done=True)

    def state(self):
        return {"answer": self.text}

    def affordances(self):
        return (Action(),)

    def evaluate(self) -> Evaluation:
        return Evaluation(float(self.text is not None and self.text.strip() == str(self.task.setup["sum"])))

    def close(self) -> None:
        pass


class Quiz:
    name = "quiz"

    def tools(self):
        return ()

    def tasks(self, split: str, count: int, seed: int = 0):
        pairs = [(12, 30), (17, 60), (41, 8)][:count]
        return tuple(Task("quiz", f"What is {a} + {b}?", {"sum": a + b}) for a, b in pairs)

    def start(self, task: Task):
        return QuizEpisode(task)

    def phrase(self, steps):
        return None


def quiz():
    return Quiz()


def questions():
    """No official solutions and no affordances: the audit must find by itself how an episode ends."""
    return Questions(is_strict=True)
