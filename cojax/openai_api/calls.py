"""Calls to OpenAI-compatible endpoints: the address, the key, how a call can fail, and when it is tried again.

Also what requests to servers that are not trusted have in common: nothing packed, no cookies, words on one line.
"""

import dataclasses
import http.cookiejar
import itertools
import os
import random
import re
from collections.abc import Callable
from typing import Literal, TypeVar
from urllib.parse import urlsplit

_T = TypeVar("_T")
CallKind = Literal["refused", "too_long", "unauthorised", "unreachable", "timeout", "server", "rate", "malformed"]
_PASSING = frozenset({"unreachable", "timeout", "server", "rate", "malformed"})
# Seconds between attempts: the first wait is doubled each time, up to the longest. An endpoint that asks for more is
# given up.
FIRST_WAIT, LONGEST_WAIT = 0.5, 120.0
# Headers that ask for bodies as they are. Bodies are read as they are sent: what is packed may expand without end.
NOT_PACKED = {"Accept-Encoding": "identity"}
# A shorter key is a placeholder, and may be a common word.
_SHORTEST_KEY = 8


class CallFailed(Exception):
    """An attempt that brought no reply. Its text never holds the key.

    refused        the endpoint would not take the request
    too_long       the prompt does not fit the model
    unauthorised   no request will be taken: the address, the key or the model is wrong
    unreachable, timeout, server, rate, malformed   another attempt may succeed
    """

    def __init__(self, kind: CallKind, reason: str, *, status: int = 0, wait: float = 0.0, lost: bool = False):
        """`status` is HTTP's, 0 where none came. `wait` are the seconds that the endpoint asks for. `lost` says that
        the endpoint may have worked on the request, and may charge for it."""
        super().__init__(reason)
        self.kind, self.reason, self.status, self.wait, self.lost = kind, reason, status, wait, lost
        # Set where the client will spell the request otherwise: it is sent again at once, which is no attempt.
        self.respelled = False
        self.attempts = 1

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in _PASSING


@dataclasses.dataclass(frozen=True)
class Address:
    """Where an endpoint is, which model it serves, and by which settings the user says both: error texts name them.

    Raises ValueError for what cannot be an address of an endpoint, or an empty model.
    """

    url: str
    model: str
    url_setting: str
    model_setting: str

    def __post_init__(self) -> None:
        expected = "expected an address like http://HOST:PORT/v1"
        try:
            parts = urlsplit(self.url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # its message may quote what stands before the @
            raise ValueError(f"{self.url_setting} is no address; {expected}") from None
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                f"{self.url_setting} holds credentials or a query; leave them out: the key comes from OPENAI_API_KEY"
            )
        if not sound:
            raise ValueError(f"{self.url_setting} is {self.url!r}; {expected}")
        if not self.model:
            raise ValueError(f"{self.model_setting} is empty; name the model that the endpoint serves")


def read_key() -> str:
    """The key in OPENAI_API_KEY; empty for a server that needs none. Raises ValueError for one that cannot be sent."""
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError("OPENAI_API_KEY holds characters that no header can carry; set it again")
    return key


def redact(text: str, key: str) -> str:
    """The text without the key, also where white space stands within the key."""
    if len(key) < _SHORTEST_KEY:
        return text
    return re.sub(r"\s*".join(re.escape(character) for character in key), lambda _: "[key]", text)


def with_retries(
    attempt: Callable[[], _T], attempts: int, seconds_left: Callable[[], float], wait: Callable[[float], object]
) -> _T:
    """The result of the first attempt that succeeds; `wait` sleeps between two of them.

    Raises the last CallFailed, whose `attempts` says how many were made: where no other attempt would help, `attempts`
    were made, or the next wait is longer than what is left or than LONGEST_WAIT. Other exceptions pass.
    """
    numbers = itertools.count(1)
    number = next(numbers)
    while True:
        try:
            return attempt()
        except CallFailed as failed:
            if failed.respelled:
                continue
            # Attempts of many threads that failed at once should not come back at once.
            backoff = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (number - 1)) * random.uniform(0.75, 1.0)
            pause = max(backoff, failed.wait)
            failed.attempts = number
            if not failed.passing or number >= attempts or pause > LONGEST_WAIT or pause >= seconds_left():
                raise
        wait(pause)
        number = next(numbers)


def no_cookies() -> http.cookiejar.CookieJar:
    """A jar that takes no cookie: a client keeps all that it is given, and sends all with every request."""
    return http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=()))


def one_line(text: str) -> str:
    """The text on one line, without what cannot be printed or encoded: a server's words forge no line of a log."""
    plain = text.encode("utf-8", "replace").decode()
    return " ".join("".join(letter if letter.isprintable() else " " for letter in plain).split())
