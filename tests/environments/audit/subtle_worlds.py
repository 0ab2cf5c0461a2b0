"""Worlds whose hole, or whose soundness, shows only on a second look; functions make them."""

from __future__ import annotations

import datetime
import json
import threading
import time
from typing import Any

from cojax.environment import Traits
from cojax.types import Action, Call, Evaluation, Message, Observation, Task
from environments.tools import ToolEnvironment


def call(name: str, /, **arguments: Any) -> Action:
    return Action(calls=(Call(name, arguments),))


def document(name: str, **properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": schema}}


class HandEpisode:
    """An episode whose tools are its methods `do_NAME`; a text ends it, unless `goes_on_after_text`."""

    TOOLS: tuple[dict[str, Any], ...] = ()
    goes_on_after_text = False

    def __init__(self, task: Task) -> None:
        self.task, self.over, self.text = task, False, ""

    def reset(self):
        return (Message("user", self.task.query),)

    def tools(self):
        return self.TOOLS

    def step(self, action: Action) -> Observation:
        if not action.calls:
            self.text, self.over = action.text, not self.goes_on_after_text
            return Observation((Message("user", "go on"),), done=self.over)
        (first_call, *_) = action.calls
        try:
            reply = getattr(self, f"do_{first_call.name}")(**first_call.arguments)
        except (AttributeError, TypeError, ValueError, KeyError, OverflowError) as error:
            return Observation((Message("tool", str(error)),), ok=False)
        return Observation((Message("tool", str(reply)),), done=self.over)

    def do_finish(self):
        self.over = True
        return "over"

    def state(self):
        return {}

    def affordances(self):
        return ()

    def close(self) -> None:
        pass


class Hand:
    """An environment by protocol."""

    traits = Traits()

    def __init__(self, episode: type[HandEpisode], *tasks: Task) -> None:
        self.name, self._episode, self._tasks = tasks[0].environment, episode, tasks

    def tools(self):
        return self._episode.TOOLS

    def tasks(self, split: str, count: int, seed: int = 0):
        return self._tasks[:count]

    def start(self, task: Task):
        return self._episode(task)

    def phrase(self, steps):
        return None


# ---- Sound: a judge that ignores the answer of `finish`, and a look-up with which ends are compared.


def store(world: dict, item: str) -> str:
    """Store an item."""
    if item in world["items"]:
        raise ValueError("it is there")
    world["items"].append(item)
    return "stored"


def items(world: dict) -> list:
    """What is there."""
    return world["items"]


def courteous():
    setups = [{"items": ["salt"]}, {"items": ["rice", "figs"]}]
    solution = (call("store", item="oats"), call("finish", answer=""))
    tasks = [Task("store", f"Store oats beside {setup['items'][0]}.", setup, solution) for setup in setups]
    return ToolEnvironment(
        "store", [store, items], dict, setups, splits={"eval": tasks},
        judge=lambda task, world, answer, finished: float(world["items"] == [*task.setup["items"], "oats"]),
    )  # fmt: skip


# ---- Sound: each call takes some minutes and is counted by tool, which the judge leaves out.


class TickingEpisode(HandEpisode):
    TOOLS = (document("look"), document("move", place={"type": "string", "enum": ["shelf", "table", "box"]}))

    def __init__(self, task):
        super().__init__(task)
        self.place, self.minutes, self.used = "shelf", 480, {}

    def _spend(self, name, minutes):
        self.minutes += minutes
        self.used[name] = self.used.get(name, 0) + 1

    def do_look(self):
        self._spend("look", 1)
        return self.place

    def do_move(self, place):
        if place not in ("shelf", "table", "box"):
            raise ValueError("no such place")
        self._spend("move", 5)
        self.place = place
        return "moved"

    def state(self):
        return {"place": self.place, "minutes": self.minutes, "used": dict(self.used)}

    def evaluate(self):
        return Evaluation(float(self.over and self.place == "box"))


def ticking():
    solution = (call("look"), call("move", place="box"), Action("It is in the box."))
    return Hand(TickingEpisode, Task("ticking", "Move it to the box.", {}, solution))


# ---- Sound: setups without tasks, in which a walk may lead back to where it began.


def raise_counter(world: dict, name: str) -> int:
    """Raise a counter by one."""
    world["counters"][name] += 1
    return world["counters"][name]


def clear_counter(world: dict, name: str) -> str:
    """Set a counter to zero."""
    if not world["counters"][name]:
        raise ValueError("it is zero")
    world["counters"][name] = 0
    return "zero"


def counters():
    return ToolEnvironment("counters", [raise_counter, clear_counter], dict, [{"counters": {"a": 0, "b": 0}}])


# ---- A class whose list all worlds share; only keys of its setup say what can be bought.


class Cart:
    bought: list[str] = []  # noqa: RUF012 - the hole

    def __init__(self, setup):
        self.prices = setup["prices"]

    def state(self):
        return {"bought": sorted(self.bought)}


def buy(cart: Cart, item: str) -> str:
    """Buy an item."""
    cart.bought.append((item, cart.prices[item])[0])
    return "bought"


def shared():
    Cart.bought.clear()
    return ToolEnvironment("cart", [buy], Cart, [{"prices": {"tea": 3, "cup": 9}}, {"prices": {"tea": 4, "jam": 2}}])


# ---- A variable that every reset overwrites, so that only simultaneous episodes meet.

_LAMPS: dict[str, bool] = {}


class CurrentEpisode(HandEpisode):
    TOOLS = (document("light", lamp={"type": "string", "enum": ["a", "b"]}), document("finish"))

    def reset(self):
        _LAMPS.update(a=False, b=False)
        return super().reset()

    def do_light(self, lamp):
        if lamp not in ("a", "b"):
            raise ValueError("no such lamp")
        _LAMPS[lamp] = True
        return "lit"

    def state(self):
        return dict(_LAMPS)

    def evaluate(self):
        return Evaluation(float(_LAMPS == {"a": True, "b": False}))


def current(concurrency=None):
    environment = Hand(CurrentEpisode, Task("current", "Light lamp a.", {}, (call("light", lamp="a"), call("finish"))))
    environment.traits = Traits(concurrency=concurrency)
    return environment


# ---- A clock that only a look-up reads which no solution needs.


def dish(world: dict) -> str:
    """Today's dish."""
    return ("soup", "fish", "rice", "pie", "roast", "salad", "stew")[datetime.date.today().weekday()]


def canteen():
    setup = {"items": ["salt"]}
    task = Task("canteen", "Store figs.", setup, (call("store", item="figs"), call("finish", answer="")))
    return ToolEnvironment("canteen", [store, dish], dict, [setup], splits={"eval": [task]})


def lap(world: dict) -> float:
    """Seconds between two readings of the clock."""
    start_s = time.time()
    return round(time.time() - start_s)


def calendar():
    return ToolEnvironment("calendar", [dish, lap], dict, [{"day": 1}])


# ---- A mean of nothing, NaN in a list, and products of finite numbers.


class Films:
    def __init__(self, setup):
        self.ratings = setup["ratings"]

    def state(self):
        means = {film: sum(stars) / len(stars) if stars else float("nan") for film, stars in self.ratings.items()}
        return {"means": means}


def rate(films: Films, film: str, stars: int) -> str:
    """Rate a film."""
    films.ratings[film].append(stars)
    return "rated"


def clear(films: Films, film: str) -> str:
    """Remove all ratings of a film."""
    films.ratings[film].clear()
    return "cleared"


def films():
    setup = {"ratings": {"Alien": [5], "Heat": [3]}}
    task = Task("films", "Give Heat 2 stars.", setup, (call("rate", film="Heat", stars=2), call("finish", answer="")))
    return ToolEnvironment("films", [rate, clear], Films, [setup], splits={"eval": [task]})


class ReadingsEpisode(HandEpisode):
    TOOLS = (document("load", values={"type": "array", "items": {"type": "number"}}), document("finish"))
    values: tuple[float, ...] = ()

    def do_load(self, values):
        self.values = tuple(map(float, values))
        return "loaded"

    def state(self):
        return {"values": list(self.values)}

    def evaluate(self):
        return Evaluation(float(self.values == (1.0, 2.0)))


def readings():
    return Hand(ReadingsEpisode, Task("readings", "Load 1 and 2.", {}, (call("load", values=[1, 2]), call("finish"))))


def amplify(world: dict, factor: float) -> str:
    """Multiply the gain."""
    world["gain"] *= factor
    return "amplified"


def gain():
    setup = {"gain": 2.0}
    task = Task("gain", "Amplify by 3.", setup, (call("amplify", factor=3.0), call("finish", answer="")))
    return ToolEnvironment("gain", [amplify], dict, [setup], splits={"eval": [task]})


# ---- Substrings of what is said before the end, and that no state shows.


class SaidEpisode(HandEpisode):
    TOOLS = (document("count"), document("say", text={"type": "string"}), document("finish"))
    goes_on_after_text = True

    def do_count(self):
        return self.task.setup["count"]

    def do_say(self, text):
        self.text = str(text)
        return "heard"

    def evaluate(self):
        return Evaluation(float(str(self.task.setup["count"]) in self.text))


def said():
    solution = (call("count"), call("say", text="35"), call("finish"))
    return Hand(SaidEpisode, Task("said", "How many are there?", {"count": 35}, solution))


def spoken():
    solution = (call("count"), Action("There are 35."), call("finish"))
    return Hand(SaidEpisode, Task("spoken", "How many are there?", {"count": 35}, solution))


# ---- A substring of an answer that is asked for in another language, after a change.


class GermanEpisode(HandEpisode):
    TOOLS = (document("kaufen"), document("rest"), document("ende", text={"type": "string"}))
    money = 90

    def do_kaufen(self):
        self.money -= 31
        return "gekauft"

    def do_rest(self):
        return self.money

    def do_ende(self, text):
        self.text, self.over = str(text), True
        return "danke"

    def state(self):
        return {"money": self.money}

    def evaluate(self):
        return Evaluation(float(self.money == 59 and "59" in self.text))


def german():
    solution = (call("kaufen"), call("rest"), call("ende", text="Es bleiben 59 Taler."))
    return Hand(GermanEpisode, Task("german", "Kaufe Brot und nenne mir den Rest.", {}, solution))


# ---- Sound: members in any order, also twice.


class MembersEpisode(HandEpisode):
    TOOLS = (document("members"), document("report", names={"type": "array", "items": {"type": "string"}}))
    names: Any = None

    def do_members(self):
        return json.dumps(self.task.setup["members"])

    def do_report(self, names):
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise ValueError("expected a list of names")
        self.names, self.over = names, True
        return "thanks"

    def state(self):
        return {"names": self.names}

    def evaluate(self):
        return Evaluation(float(self.names is not None and {*self.names} == {*self.task.setup["members"]}))


def members():
    setup = {"members": ["ann", "bo"]}
    solution = (call("members"), call("report", names=["ann", "bo"]))
    return Hand(MembersEpisode, Task("members", "Who are the members?", setup, solution))


# ---- A world that hangs, and one that cannot be made.


class HangingEpisode(HandEpisode):
    TOOLS = (document("wait"),)

    def do_wait(self):
        threading.Event().wait(20.0)

    def evaluate(self):
        return Evaluation(0.0)


def hanging():
    return Hand(HangingEpisode, *(Task("hanging", f"Wait {number}.", {}, (call("wait"),)) for number in range(9)))


def unmakeable():
    raise RuntimeError("no database")
