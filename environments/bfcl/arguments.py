"""The calls that would work now: ONE table of arguments worth trying, their sources, and trials on copies.

The table has, for each tool and parameter, the source of its values: what the episode has shown, or words of ours.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cojax.types import Call
from .calls import Apis

# An option of a parameter: leave it out.
OMIT = object()


class Scene:
    """The known values: the contents of the instances, and the results of this episode by key."""

    def __init__(self, instances: Mapping[str, Any], seen: Sequence[Any]):
        self.instances = instances
        self.results: dict[str, list[Any]] = {}
        for result in seen:
            for key, value in _leaves(result, ""):
                self.results.setdefault(key, []).append(value)

    def of(self, name: str, attribute: str) -> Any:
        """A public attribute, or nothing where the class is not involved."""
        instance = self.instances.get(name)
        return () if instance is None else vars(instance)[attribute]

    def here(self, kind: str) -> list[str]:
        """Names of the files or directories in the current directory."""
        system = self.instances.get("GorillaFileSystem")
        return [] if system is None else _names_in(system._current_dir, kind)


Source = Callable[[Scene], Iterable[Any]]


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The short values in a result, each with its key; values in lists have the list's key."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, str(name))
    elif isinstance(value, (list, tuple)):
        for inner in value[:20]:
            yield from _leaves(inner, key)
    elif (isinstance(value, str) and 0 < len(value) <= 80) or type(value) in (int, float):
        yield key, value


def _names_in(directory: Any, kind: str) -> list[str]:
    return [name for name, item in directory.contents.items() if type(item).__name__ == kind]


def words(*values: Any) -> Source:
    return lambda scene: values


def results(*keys: str) -> Source:
    return lambda scene: [value for key in keys for value in scene.results.get(key, ())]


def either(*sources: Source) -> Source:
    return lambda scene: itertools.chain.from_iterable(source(scene) for source in sources)


def items(name: str, attribute: str) -> Source:
    """The keys of a dict or the elements of a list; a single value alone, unless there is none."""

    def source(scene: Scene) -> Iterable[Any]:
        value = scene.of(name, attribute)
        if isinstance(value, (Mapping, list, tuple, set)):
            return list(value)
        return [] if value is None else [value]

    return source


def field(name: str, attribute: str, key: str) -> Source:
    """The entry `key` of every record in a list, or among a dict's values."""

    def source(scene: Scene) -> Iterable[Any]:
        records = scene.of(name, attribute)
        records = records.values() if isinstance(records, Mapping) else records
        return [record[key] for record in records if isinstance(record, Mapping) and key in record]

    return source


def files(scene: Scene) -> list[str]:
    return scene.here("File")


def folders(scene: Scene) -> list[str]:
    return scene.here("Directory")


def names_below(scene: Scene) -> list[str]:
    """The names of all files, in whatever folder."""
    system = scene.instances.get("GorillaFileSystem")
    names: list[str] = []
    open_ = [] if system is None else [system.root]
    # Calls can put a folder inside itself.
    for _ in range(200):
        if not open_:
            break
        directory = open_.pop()
        names += _names_in(directory, "File")
        open_ += [directory.contents[name] for name in _names_in(directory, "Directory")]
    return names


def words_here(scene: Scene) -> list[str]:
    """The words in the files of the current directory."""
    system = scene.instances.get("GorillaFileSystem")
    contents = [] if system is None else [system._current_dir.contents[name].content for name in files(scene)]
    return [word.strip(".,:;()") for text in contents for word in text[:500].split()[:40] if len(word) > 4]


def messages(scene: Scene) -> list[str]:
    return [str(text) for record in scene.of("MessageAPI", "inbox") for text in record.values()]


def receivers(scene: Scene) -> list[str]:
    users = scene.of("MessageAPI", "user_map")
    return list(users.values()) if isinstance(users, Mapping) else []


def first_words(source: Source) -> Source:
    return lambda scene: [word.strip(".,!?") for text in source(scene) for word in str(text).split() if len(word) > 4]


def stocks(scene: Scene) -> list[list[str]]:
    symbols = list(scene.of("TradingBot", "stocks"))
    return [symbols[start : start + size] for size in (2, 3, 4) for start in range(0, max(0, len(symbols) - size), 2)]


def told_numbers(scene: Scene) -> list[float]:
    return [value for values in scene.results.values() for value in values if type(value) in (int, float)][-8:]


def number_lists(scene: Scene) -> list[list[float]]:
    numbers = told_numbers(scene)
    lists: list[list[float]] = [
        [4, 8, 15, 16],
        [120, 75, 300],
        [2.5, 7.5, 10.0],
        [61, 88, 93, 79, 54],
        [1500, 2250],
        [9, 27, 81],
    ]
    return [*lists, numbers[-3:], numbers[-2:]] if len(numbers) >= 3 else lists


FILE, FOLDER, ENTRY = files, folders, either(files, folders)
NEW_FILE = words("minutes.txt", "outline.md", "budget_2025.csv", "todo.txt", "readme_first.txt", "figures.json")
NEW_NAME = words("kept_2025", "second_version", "renamed_1", "to_keep")
NEW_FOLDER = words("backup", "drafts_2025", "to_review", "old_versions", "shared", "summer")
TEXT = words(
    "The figures are final.",
    "Please review this by Friday.",
    "Meeting moved to 3 pm.",
    "All tests passed today.",
    "Thanks for your patience.",
    "First draft, do not share yet.",
)
AMOUNT = words(250, 500, 1200, 2000.5, 3500, 80)
NUMBER = either(told_numbers, words(12, 3.5, 144, 60, 7, 1250, 0.75, 250))
DIGITS = words(2, 3, 5, 8)
LENGTH = words("km", "m", "cm", "mm")
USER, RECEIVER = items("MessageAPI", "user_map"), either(receivers, results("user_id"))
TWEET = either(items("TwitterAPI", "tweets"), results("id"))
AUTHOR = either(field("TwitterAPI", "tweets", "username"), items("TwitterAPI", "username"))
HANDLES = words(["@maria"], ["@support"], ["@alice", "@bob"])
TICKET = either(field("TicketAPI", "ticket_queue", "id"), results("id"))
SYMBOL = either(items("TradingBot", "stocks"), results("symbol"))
ORDER = either(items("TradingBot", "orders"), results("order_id"))
TOKEN = items("TravelAPI", "access_token")
CARD, BOOKING = items("TravelAPI", "credit_card_list"), items("TravelAPI", "booking_record")
AIRPORT = either(words("SFO", "LAX", "JFK", "ORD", "BOS", "RMS", "SBK", "MPC", "CRH"), results("nearest_airport"))
CLASS = words("economy", "business", "first")
DATE = words("2026-09-14", "2026-10-02", "2026-11-21", "2026-12-05")
FIRST, LAST = items("TravelAPI", "user_first_name"), items("TravelAPI", "user_last_name")
TOWN = words("Rivermist", "Stonebrook", "Maplecrest", "Silverpine", "Shadowridge", "Oakendale", "San Francisco")
CITY = either(TOWN, words("London", "Paris", "Los Angeles", "New York", "Chicago", "Boston", "Rome"))
ZIP = either(words("83214", "74532", "94016", "56108", "62947", "71354", "83462", "47329", "52013"), results("zipcode"))
DOORS = words(
    ["driver", "passenger", "rear_left", "rear_right"], ["driver"], ["passenger"], ["rear_left", "rear_right"]
)
CURRENCY = words("USD", "EUR", "GBP", "JPY", "RMB", "CAD")

# Tool → parameter → what to try. A tool is offered where every parameter has something to try.
TRIED: Mapping[str, Mapping[str, Source]] = {
    # GorillaFileSystem
    "cat": {"file_name": FILE},
    "cd": {"folder": either(FOLDER, words(".."))},
    "cp": {"source": ENTRY, "destination": either(FOLDER, NEW_NAME)},
    "diff": {"file_name1": FILE, "file_name2": FILE},
    "du": {"human_readable": words(OMIT, True)},
    "echo": {"content": TEXT, "file_name": either(words(OMIT), FILE, FILE)},
    "find": {"path": words(OMIT), "name": either(words(OMIT), names_below)},
    "grep": {"file_name": FILE, "pattern": words_here},
    "ls": {"a": words(OMIT, True)},
    "mkdir": {"dir_name": NEW_FOLDER},
    "mv": {"source": ENTRY, "destination": either(FOLDER, NEW_NAME)},
    "pwd": {},
    "rm": {"file_name": ENTRY},
    "rmdir": {"dir_name": FOLDER},
    "sort": {"file_name": FILE},
    "tail": {"file_name": FILE, "lines": words(OMIT, 1, 2, 5)},
    "touch": {"file_name": NEW_FILE},
    "wc": {"file_name": FILE, "mode": words(OMIT, "w", "c")},
    # MathAPI
    "absolute_value": {"number": words(-12, -3.5, -250, -0.75)},
    "add": {"a": NUMBER, "b": NUMBER},
    "divide": {"a": NUMBER, "b": NUMBER},
    "imperial_si_conversion": {
        "value": NUMBER,
        "unit_in": words("km", "kg", "cm"),
        "unit_out": words("miles", "lb", "in"),
    },
    "logarithm": {"value": words(20, 36, 150, 980), "base": words(2, 5, 10), "precision": DIGITS},
    "max_value": {"numbers": number_lists},
    "mean": {"numbers": number_lists},
    "min_value": {"numbers": number_lists},
    "multiply": {"a": NUMBER, "b": NUMBER},
    "percentage": {"part": NUMBER, "whole": NUMBER},
    "power": {"base": words(2, 3, 5, 12), "exponent": words(2, 3, 4)},
    "round_number": {"number": words(3.14159, 27.456, 1999.995), "decimal_places": words(OMIT, 1, 2)},
    "si_unit_conversion": {"value": NUMBER, "unit_in": LENGTH, "unit_out": LENGTH},
    "square_root": {"number": words(2, 50, 144, 625), "precision": DIGITS},
    "standard_deviation": {"numbers": number_lists},
    "subtract": {"a": NUMBER, "b": NUMBER},
    "sum_values": {"numbers": number_lists},
    # MessageAPI
    "add_contact": {"user_name": words("Nadia", "Oskar", "Priya", "Tomas")},
    "delete_message": {"receiver_id": RECEIVER},
    "get_message_stats": {},
    "get_user_id": {"user": USER},
    "list_users": {},
    "message_get_login_status": {},
    "message_login": {"user_id": RECEIVER},
    "search_messages": {"keyword": either(first_words(messages), words("file", "update"))},
    "send_message": {"receiver_id": RECEIVER, "message": TEXT},
    "view_messages_sent": {},
    # TwitterAPI
    "authenticate_twitter": {"username": items("TwitterAPI", "username"), "password": items("TwitterAPI", "password")},
    "comment": {"tweet_id": TWEET, "comment_content": TEXT},
    "follow_user": {"username_to_follow": words("maria_codes", "dailyfacts", "greenroads")},
    "get_tweet": {"tweet_id": TWEET},
    "get_tweet_comments": {"tweet_id": TWEET},
    "get_user_stats": {"username": AUTHOR},
    "get_user_tweets": {"username": AUTHOR},
    "list_all_following": {},
    "mention": {"tweet_id": TWEET, "mentioned_usernames": HANDLES},
    "post_tweet": {
        "content": TEXT,
        "tags": words(OMIT, ["#news"], ["#team", "#update"]),
        "mentions": either(words(OMIT), HANDLES),
    },
    "posting_get_login_status": {},
    "retweet": {"tweet_id": TWEET},
    "search_tweets": {"keyword": either(first_words(field("TwitterAPI", "tweets", "content")), words("update"))},
    "unfollow_user": {"username_to_unfollow": items("TwitterAPI", "following_list")},
    # TicketAPI
    "close_ticket": {"ticket_id": TICKET},
    "create_ticket": {
        "title": words("Printer offline", "Refund request", "Cannot log in", "Slow dashboard"),
        "description": either(words(OMIT), TEXT),
        "priority": words(OMIT, 2, 3, 4, 5),
    },
    "edit_ticket": {
        "ticket_id": TICKET,
        "updates": words({"priority": 3}, {"priority": 5}, {"status": "In Progress"}, {"title": "Needs attention"}),
    },
    "get_ticket": {"ticket_id": TICKET},
    "get_user_tickets": {"status": words(OMIT, "Open", "Closed", "Resolved")},
    "logout": {},
    "resolve_ticket": {"ticket_id": TICKET, "resolution": words("Restarted the service.", "Replaced the cable.")},
    "ticket_get_login_status": {},
    "ticket_login": {"username": words("rwagner", "lchen"), "password": words("Blue$ky77", "pa55-Word")},
    # TradingBot
    "add_to_watchlist": {"stock": SYMBOL},
    "cancel_order": {"order_id": ORDER},
    "filter_stocks_by_price": {"stocks": stocks, "min_price": words(50, 100, 200), "max_price": words(400, 900, 3000)},
    "fund_account": {"amount": AMOUNT},
    "get_account_info": {},
    "get_available_stocks": {"sector": words("Technology", "Automobile")},
    "get_current_time": {},
    "get_order_details": {"order_id": ORDER},
    "get_order_history": {},
    "get_stock_info": {"symbol": SYMBOL},
    "get_symbol_by_name": {
        "name": words("Apple", "Google", "Tesla", "Microsoft", "Nvidia", "Zeta Corp", "Omega Industries")
    },
    "get_transaction_history": {"start_date": words(OMIT, "2024-01-01"), "end_date": words(OMIT, "2025-01-01")},
    "get_watchlist": {},
    "notify_price_change": {"stocks": stocks, "threshold": words(0.1, 0.2, 5)},
    "place_order": {
        "order_type": words("Buy", "Sell"),
        "symbol": SYMBOL,
        "price": either(field("TradingBot", "stocks", "price"), results("price")),
        "amount": words(1, 2, 5, 10),
    },
    "remove_stock_from_watchlist": {"symbol": items("TradingBot", "watch_list")},
    "trading_get_login_status": {},
    "trading_login": {"username": words("rwagner", "lchen"), "password": words("Blue$ky77", "pa55-Word")},
    "trading_logout": {},
    "withdraw_funds": {"amount": AMOUNT},
    # TravelAPI
    "authenticate_travel": {
        "client_id": words("client_77", "client_81"),
        "client_secret": words("s3cret_key", "q7-Lake"),
        "refresh_token": words("refresh_204", "refresh_310"),
        "grant_type": words("read_write", "read"),
        "user_first_name": either(FIRST, words("Ines")),
        "user_last_name": either(LAST, words("Moreau")),
    },
    "book_flight": {
        "access_token": TOKEN,
        "card_id": CARD,
        "travel_date": DATE,
        "travel_from": AIRPORT,
        "travel_to": AIRPORT,
        "travel_class": CLASS,
    },
    "cancel_booking": {"access_token": TOKEN, "booking_id": BOOKING},
    "compute_exchange_rate": {"base_currency": words("USD"), "target_currency": CURRENCY, "value": AMOUNT},
    "contact_customer_support": {"booking_id": BOOKING, "message": TEXT},
    "get_all_credit_cards": {},
    "get_booking_history": {"access_token": TOKEN},
    "get_budget_fiscal_year": {
        "lastModifiedAfter": words(OMIT, "2017-01-01T00:00:00"),
        "includeRemoved": words(OMIT, "true"),
    },
    "get_credit_card_balance": {"access_token": TOKEN, "card_id": CARD},
    "get_flight_cost": {"travel_from": AIRPORT, "travel_to": AIRPORT, "travel_date": DATE, "travel_class": CLASS},
    "get_nearest_airport_by_city": {"location": CITY},
    "list_all_airports": {},
    "purchase_insurance": {
        "access_token": TOKEN,
        "insurance_type": words("basic", "comprehensive"),
        "insurance_cost": words(90, 150.5, 300),
        "booking_id": BOOKING,
        "card_id": CARD,
    },
    "register_credit_card": {
        "access_token": TOKEN,
        "card_number": words("4000 1234 5678 9017", "5100 2233 4455 6676"),
        "expiration_date": words("09/2028", "03/2029"),
        "cardholder_name": words("Ines Moreau", "Jonas Keller"),
        "card_verification_number": words(318, 742),
    },
    "retrieve_invoice": {"access_token": TOKEN, "booking_id": BOOKING, "insurance_id": words(OMIT)},
    "set_budget_limit": {"access_token": TOKEN, "budget_limit": words(1500, 4000, 9000.5)},
    "travel_get_login_status": {},
    "verify_traveler_information": {
        "first_name": FIRST,
        "last_name": LAST,
        "date_of_birth": words("1984-06-30", "1991-02-11"),
        "passport_number": words("US5567812", "US9041187"),
    },
    # VehicleControlAPI
    "activateParkingBrake": {"mode": words("engage", "release")},
    "adjustClimateControl": {
        "temperature": words(18, 21.5, 24, 70),
        "unit": words(OMIT, "fahrenheit"),
        "fanSpeed": words(OMIT, 30, 75),
        "mode": words(OMIT, "cool", "heat", "defrost"),
    },
    "check_tire_pressure": {},
    "displayCarStatus": {
        "option": words("fuel", "battery", "doors", "climate", "headlights", "engine", "parkingBrake")
    },
    "display_log": {"messages": words(["Departure noted."], ["Tires checked.", "Fuel checked."])},
    "estimate_distance": {"cityA": ZIP, "cityB": ZIP},
    "estimate_drive_feasibility_by_mileage": {"distance": either(results("distance"), words(120, 350, 800))},
    "fillFuelTank": {"fuelAmount": words(2, 5, 10.5, 20)},
    "find_nearest_tire_shop": {},
    "gallon_to_liter": {"gallon": either(results("gallon"), words(3, 8, 12.5))},
    "get_current_speed": {},
    "get_outside_temperature_from_google": {},
    "get_outside_temperature_from_weather_com": {},
    "get_zipcode_based_on_city": {"city": TOWN},
    "liter_to_gallon": {"liter": either(results("liter"), words(15, 30, 42.5))},
    "lockDoors": {"unlock": words(True, False), "door": DOORS},
    "pressBrakePedal": {"pedalPosition": words(1.0, 0.5)},
    "releaseBrakePedal": {},
    "setCruiseControl": {
        "speed": words(60, 85, 100),
        "activate": words(True, False),
        "distanceToNextVehicle": words(50, 100, 150),
    },
    "setHeadlights": {"mode": words("on", "off", "auto")},
    "set_navigation": {"destination": words("12 Harbor Road, Pinehaven, ME", "88 Hill Street, Greenfield, WI")},
    "startEngine": {"ignitionMode": words("START")},
}


# The most calls offered in all, offered of one tool, and tried of one tool.
_OFFERED = 150
_OF_TOOL = 6
_TRIES = 10


def offers(apis: Apis, scene: Scene, tools: Sequence[str], salt: str) -> list[Call]:
    """At most 150 different calls of these tools that work now, drawn by `salt`: of each tool one, then a second, …"""
    tried = apis.trial()
    found = []
    for tool in tools:
        calls = _combinations(tool, scene, random.Random(repr((tool, salt))))
        working = (call for call in itertools.islice(calls, _TRIES) if tried(call).ok)
        found.append(list(itertools.islice(working, _OF_TOOL)))
    layers = itertools.zip_longest(*found)
    return [call for layer in layers for call in layer if call is not None][:_OFFERED]


def _combinations(tool: str, scene: Scene, rng: random.Random) -> Iterator[Call]:
    """Different calls of the tool in random order, no two arguments alike."""
    options = {name: list(source(scene)) for name, source in TRIED[tool].items()}
    if not all(options.values()):
        return
    known: set[str] = set()
    for _ in range(3 * _TRIES):
        chosen = {name: rng.choice(values) for name, values in options.items()}
        arguments = {name: value for name, value in chosen.items() if value is not OMIT}
        texts = [json.dumps(value) for value in arguments.values()]
        key = json.dumps(arguments)
        if key not in known and len(set(texts)) == len(texts):
            known.add(key)
            yield Call(tool, arguments)
