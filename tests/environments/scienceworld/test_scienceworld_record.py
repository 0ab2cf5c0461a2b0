"""The simulator's objects become a state that is equal for equal worlds; the objects here are in its form."""

from typing import Any

from environments.scienceworld.inside import read_goals, read_state

EMPTY = (
    "propMaterial", "propContainer", "propDevice", "propPortal", "propElectricalConnection", "propLife",
)  # fmt: skip


def told(name: str, *inner: dict[str, Any], substance: str = "", **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "uuid": name, "isDeleted": False, **dict.fromkeys(EMPTY), **properties}
    if substance:
        phase, colour, made_of = substance.split(" ", 2)
        found["propMaterial"] = {
            "stateOfMatter": phase, "color": colour, "substanceName": made_of, "temperatureC": 21.5,
            "isCombusting": False, "hasCombusted": False,
        }  # fmt: skip
    return found | {"contents": {f"{one['name']}-{number}": one for number, one in enumerate(inner)}}


def container(is_open: bool) -> dict[str, Any]:
    return {"propContainer": {"isOpen": is_open, "isClosable": True}}


def world(*kitchen: dict[str, Any], carried: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    agent = told("agent", told("inventory", *carried))
    return told(
        "universe", told("kitchen", *kitchen, agent), told("hallway", told("picture", substance="solid white paper"))
    )


def test_a_state_says_where_the_agent_is_what_it_carries_and_what_each_room_holds() -> None:
    cup = told("cup", told("water", substance="liquid clear water"), substance="solid clear glass")
    cupboard = told("cupboard", cup, substance="solid brown wood", **container(True))
    assert read_state(world(cupboard, carried=(told("orange"),)), 17) == {
        "place": "kitchen",
        "inventory": [{"object": "orange"}],
        "rooms": {
            "kitchen": [
                {
                    "object": "cupboard",
                    "is": "solid brown wood",
                    "also": ["open"],
                    "holds": [
                        {
                            "object": "cup",
                            "is": "solid clear glass",
                            "holds": [{"object": "water", "is": "liquid clear water"}],
                        }
                    ],
                }
            ],
            "hallway": [{"object": "picture", "is": "solid white paper"}],
        },
        "score": 17,
    }


def test_the_order_of_objects_and_their_temperatures_do_not_count() -> None:
    one, other = told("fork", substance="solid grey steel"), told("cup", substance="solid clear glass")
    warm = told("fork", substance="solid grey steel")
    warm["propMaterial"]["temperatureC"] = 80.0
    assert read_state(world(one, other), 0) == read_state(world(other, warm), 0)


def test_what_an_action_does_counts() -> None:
    device = told("stove", propDevice={"isActivated": True, "isBroken": False})
    burning = told("wood", substance="solid brown wood")
    burning["propMaterial"]["isCombusting"] = True
    wire = told("wire", told("terminal 1", propElectricalConnection={"connectedTo": ["anode"]}))
    battery = told("battery", told("anode", propElectricalConnection={"connectedTo": ["terminal 1"]}))
    found = read_state(world(device, burning, wire, battery, told("hatch", propPortal={"isOpen": False})), 0)["rooms"][
        "kitchen"
    ]
    assert found == [
        {"object": "wood", "is": "solid brown wood", "also": ["burning"]},
        {"object": "hatch", "also": ["closed"]},
        {"object": "stove", "also": ["on"]},
        {"object": "wire", "holds": [{"object": "terminal 1", "also": ["connected to battery anode"]}]},
        {"object": "battery", "holds": [{"object": "anode", "also": ["connected to wire terminal 1"]}]},
    ]


def test_growth_does_not_count_nor_water_in_pots_nor_terminals_without_wires() -> None:
    def pot(stage: str, *others: dict[str, Any]) -> dict[str, Any]:
        plant = told(stage, told("flower"), substance="solid green plant matter", propLife={"lifeformType": "pea"})
        return told("flower pot 1", plant, told("terminal 1"), *others)

    grown = read_state(world(pot("pea plant", told("water", substance="liquid clear water"))), 0)
    assert grown == read_state(world(pot("pea seed")), 0)
    assert grown["rooms"]["kitchen"] == [{"object": "flower pot 1", "holds": [{"plant": "pea"}]}]


PROGRESS = """Completed keys: 
----
Sequential Subgoals:
----
0\ttrue\t      GoalFind\tfocus on substance
1\tfalse\t      GoalChangeStateOfMatter\tsubstance is in a liquid state
----
Unordered and Optional Subgoals:
----
0\ttrue\t      GoalInRoomWithObject\tbe in same location as water
----
"""


def test_the_goals_of_a_task_are_those_in_a_fixed_order() -> None:
    assert read_goals(PROGRESS) == [("focus on substance", True), ("substance is in a liquid state", False)]
    assert read_goals("") == []
