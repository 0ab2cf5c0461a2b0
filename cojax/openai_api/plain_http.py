"""What requests to servers that are not trusted have in common: nothing packed, no cookies, words on one line."""

from __future__ import annotations

import http.cookiejar

# Headers that ask for bodies as they are. Bodies are read as they are sent: what is packed may expand without end.
NOT_PACKED = {"Accept-Encoding": "identity"}


def no_cookies() -> http.cookiejar.CookieJar:
    """A jar that takes no cookie: a client keeps all that it is given, and sends all with every request."""
    return http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=()))


def one_line(text: str) -> str:
    """The text on one line, without what cannot be printed or encoded: a server's words forge no line of a log."""
    plain = text.encode("utf-8", "replace").decode()
    return " ".join("".join(letter if letter.isprintable() else " " for letter in plain).split())
