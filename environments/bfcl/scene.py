"""The values that an episode has shown: the sources from which arguments are taken."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

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


def prices(scene: Scene) -> list[float]:
    stocks = scene.of("TradingBot", "stocks")
    return [record["price"] for record in stocks.values() if "price" in record] if isinstance(stocks, Mapping) else []


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
