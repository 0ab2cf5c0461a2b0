"""The one client of OpenAI-compatible endpoints, for explorers, embeddings, evaluations and simulated customers.

It checks the address, keeps the key secret, says how a call failed, and tries it again. A reply as a whole has a
deadline and a limit of bytes; redirects are not followed. All requests to servers that are not trusted share three
rules: no compression, no cookies, and a server's words on one line.
"""

import contextlib
import email.utils
import http.cookiejar
import json
import math
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from cojax.host.background import run_on_thread

_T = TypeVar("_T")
CallKind = Literal["refused", "too_long", "unauthorised", "unreachable", "timeout", "server", "rate", "malformed"]
_TRANSIENT_KINDS = frozenset({"unreachable", "timeout", "server", "rate", "malformed"})
# Seconds between attempts: the first wait is doubled each time, up to the longest. If an endpoint asks for more, the
# call fails.
FIRST_WAIT_S, MAX_WAIT_S = 0.5, 120.0
# Headers that ask for bodies without compression. Bodies are never decompressed: they might expand without end.
UNCOMPRESSED = {"Accept-Encoding": "identity"}
# A shorter key is a placeholder, and may be a common word.
_MIN_KEY_LENGTH = 8
# Bytes of a chat completion and of embeddings: far more than any model sends.
_MAX_CHAT_BYTES, _MAX_EMBEDDINGS_BYTES = 8 * 2**20, 64 * 2**20
# Bytes that are read of an error's body, and characters of an error text.
_MAX_ERROR_BYTES, _MAX_REASON_LENGTH = 64 * 2**10, 300
_TOO_LONG_PATTERN = re.compile(
    r"context.{0,20}length|maximum context|too long|exceeds? the .{0,20}(context|max)", re.IGNORECASE
)
# The deadline of the request that this thread makes, by `time.monotonic`.
_REQUEST_DEADLINE: ContextVar[float] = ContextVar("request_deadline")


class CallFailed(Exception):
    """An attempt that brought no reply. Its text never holds the key.

    refused        the endpoint would not take the request
    too_long       the prompt does not fit the model
    unauthorised   no request will be taken: the address, the key or the model is wrong
    unreachable, timeout, server, rate, malformed   another attempt may succeed
    """

    def __init__(self, kind: CallKind, reason: str, *, status: int = 0, wait_s: float = 0.0, may_charge: bool = False):
        """`status` is HTTP's, 0 if none came.

        `wait_s` is the number of seconds that the endpoint asks for. `may_charge` says that the endpoint may have
        worked on the request and charge for it.
        """
        super().__init__(reason)
        self.kind, self.reason, self.status, self.wait, self.may_charge = kind, reason, status, wait_s, may_charge
        # Set if the client will spell the request differently. It is sent again at once, which does not count as an
        # attempt.
        self.resend = False
        self.attempts = 1

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind in _TRANSIENT_KINDS


def check_address(url: str, model: str, url_setting: str, model_setting: str) -> None:
    """Raises ValueError, which names the setting, for an invalid address of an endpoint or an empty model."""
    hint = "expected an address like http://HOST:PORT/v1"
    try:
        address = urlsplit(url)
        is_address = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # its message may quote the credentials before the @
        raise ValueError(f"{url_setting} is no address; {hint}") from None
    if "@" in address.netloc or address.query:
        raise ValueError(
            f"{url_setting} holds credentials or a query; leave them out: the key comes from OPENAI_API_KEY"
        )
    if not is_address:
        raise ValueError(f"{url_setting} is {url!r}; {hint}")
    if not model:
        raise ValueError(f"{model_setting} is empty; name the model that the endpoint serves")


def redact(text: str, key: str) -> str:
    """The text without the key, even if white space splits the key."""
    if len(key) < _MIN_KEY_LENGTH:
        return text
    return re.sub(r"\s*".join(re.escape(character) for character in key), lambda _: "[key]", text)


def with_retries(
    attempt: Callable[[], _T], max_attempts: int, seconds_left: Callable[[], float], sleep: Callable[[float], object]
) -> _T:
    """The result of the first attempt that succeeds; `sleep` waits between two attempts.

    Raises the last CallFailed if another attempt would not help, if `max_attempts` were made, or if the next wait is
    longer than the time left or MAX_WAIT_S. Its `attempts` says how many were made. Other exceptions pass.
    """
    attempt_no = 1
    while True:
        try:
            return attempt()
        except CallFailed as failure:
            if failure.resend:
                continue
            # Attempts of many threads that failed at once should not come back at once.
            backoff_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2 ** (attempt_no - 1)) * random.uniform(0.75, 1.0)
            wait_s = max(backoff_s, failure.wait)
            failure.attempts = attempt_no
            if not failure.may_pass or attempt_no >= max_attempts or wait_s > MAX_WAIT_S or wait_s >= seconds_left():
                raise
        sleep(wait_s)
        attempt_no += 1


def no_cookies() -> http.cookiejar.CookieJar:
    """A jar that takes no cookies: a client would keep all that it gets, and send all of them with every request."""
    return http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=()))


def flatten(text: str) -> str:
    """The text on one line, without unprintable characters, so that a server's words cannot forge a line of a log."""
    encodable_text = text.encode("utf-8", "replace").decode()
    return " ".join("".join(character if character.isprintable() else " " for character in encodable_text).split())


class ApiClient:
    """Sends requests to one endpoint, at `url`; any thread may call it.

    Error texts name the settings of the address and of the model. Redirects are not followed. The key comes only from
    the environment variable OPENAI_API_KEY, is sent only to this address, and is removed from every error text. A
    server that needs no key works without one. Raises ValueError for an invalid address, an empty model, and a key that
    cannot be sent.
    """

    def __init__(self, url: str, model: str, url_setting: str, model_setting: str) -> None:
        import openai  # this takes most of a second, and most commands call no endpoint

        check_address(url, model, url_setting, model_setting)
        self._url_setting, self._model_setting = url_setting, model_setting
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise ValueError("OPENAI_API_KEY holds characters that no header can carry; set it again")
        # openai reads the body of an error, and httpx that of a redirect, however long it is or takes.
        # `_refuse` is called before either does. Cookies would be kept without bound, and sent.
        http_client = openai.DefaultHttpxClient(
            follow_redirects=False, event_hooks={"response": [self._refuse]}, cookies=no_cookies(), headers=UNCOMPRESSED
        )
        self._client = openai.OpenAI(api_key=self._key or "none", base_url=url, max_retries=0, http_client=http_client)
        self._uses_newer_limit = False

    def chat(self, body: Mapping[str, Any], timeout_s: float, parse: Callable[[Any], _T]) -> _T:
        """What `parse` returns for the reply to a chat request. Raises CallFailed, even for an error of `parse`."""
        request = self.spell(body)
        try:
            return self._post(self._client.chat.completions, request, timeout_s, _MAX_CHAT_BYTES, parse)
        except CallFailed as failure:
            if failure.status in (400, 422) and "max_completion_tokens" in failure.reason and "max_tokens" in request:
                self._uses_newer_limit = failure.resend = True
            raise

    def embeddings(self, body: Mapping[str, Any], timeout_s: float, parse: Callable[[Any], _T]) -> _T:
        """What `parse` returns for the reply to a request for embeddings.

        Raises CallFailed, even for an error of `parse`.
        """
        return self._post(self._client.embeddings, body, timeout_s, _MAX_EMBEDDINGS_BYTES, parse)

    def spell(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A chat request as it is sent, with the newer name of `max_tokens` if the endpoint has asked for that."""
        if not self._uses_newer_limit or "max_tokens" not in body:
            return dict(body)
        other_fields = {field_name: value for field_name, value in body.items() if field_name != "max_tokens"}
        return {**other_fields, "max_completion_tokens": body["max_tokens"]}

    def redact(self, text: str) -> str:
        """The text without the key."""
        return redact(text, self._key)

    def _post(
        self, api: Any, body: Mapping[str, Any], timeout_s: float, max_bytes: int, parse: Callable[[Any], _T]
    ) -> _T:
        # A timeout of HTTP bounds a single read, and a slow reply takes any number of them: the whole is bounded here.
        import openai

        deadline = time.monotonic() + timeout_s
        future = run_on_thread("openai", lambda: _read_reply(api, body, deadline, max_bytes))
        try:
            content = future.result(timeout=timeout_s)
        except (TimeoutError, openai.APITimeoutError):
            raise CallFailed("timeout", f"no reply within {timeout_s:.3g} s", may_charge=True) from None
        except CallFailed as failure:
            raise failure from None
        except Exception as error:
            if isinstance(error.__cause__, CallFailed):  # older releases of openai wrap what `_refuse` raises
                raise error.__cause__ from None
            # A timeout of HTTP while the body is read. Its type depends on the release of openai.
            if time.monotonic() >= deadline:
                raise CallFailed("timeout", f"no reply within {timeout_s:.3g} s", may_charge=True) from None
            # Not only openai's own errors: those of the HTTP library pass through while a body is read.
            reason = self._redact_line(f"{type(error).__name__}: {error.__cause__ or error}")
            may_charge = not isinstance(error, openai.APIConnectionError)
            raise CallFailed("unreachable", reason, may_charge=may_charge) from None
        try:
            return parse(json.loads(content.decode("utf-8", "replace")))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            reason = self._redact_line(f"the reply cannot be used: {type(error).__name__}: {error}")
            raise CallFailed("malformed", reason, may_charge=True) from None

    def _refuse(self, response: Any) -> None:
        """Raises CallFailed for every status but success."""
        if response.is_success:
            return
        status = response.status_code
        if response.has_redirect_location:
            location = self._redact_line(response.headers["location"])
            reason = f"HTTP {status}: the endpoint is elsewhere: {location}. Set {self._url_setting} to that"
            raise CallFailed("unauthorised", reason, status=status)
        try:
            content = _read_body(response, _MAX_ERROR_BYTES)
        except Exception:  # with or without the body the status counts, unless time is up
            if time.monotonic() > _REQUEST_DEADLINE.get():
                reason = f"HTTP {status}, and its body did not end in time"
                raise CallFailed("timeout", reason, status=status, may_charge=True) from None
            content = b""
        # A body that is cut off is not quoted: half a key could not be recognised.
        message = f"its body is longer than {_MAX_ERROR_BYTES:,} bytes" if content is None else read_error(content)
        reason = f"HTTP {status}: {self._redact_line(message) or 'it says nothing'}"
        if status in (401, 403, 404):
            setting_names = f"OPENAI_API_KEY, {self._url_setting} and {self._model_setting}"
            raise CallFailed("unauthorised", f"{reason}. Check {setting_names}", status=status)
        if status in (408, 409, 425, 429) or status >= 500:
            retry_after_s = _parse_retry_after(response.headers.get("retry-after", ""))
            raise CallFailed("rate" if status == 429 else "server", reason, status=status, wait_s=retry_after_s)
        raise CallFailed("too_long" if _TOO_LONG_PATTERN.search(reason) else "refused", reason, status=status)

    def _redact_line(self, text: str) -> str:
        """The text on one short line. The key is removed before the text is cut, because a truncated key would no
        longer be recognised."""
        return self.redact(flatten(text))[:_MAX_REASON_LENGTH]


def _read_reply(resource: Any, request: Mapping[str, Any], deadline: float, max_bytes: int) -> bytes:
    """The body of the reply.

    Raises CallFailed for a reply that is too long or no success, TimeoutError, and openai's own errors.
    """
    _REQUEST_DEADLINE.set(deadline)
    create = resource.with_streaming_response.create
    with create(**request, timeout=max(0.001, deadline - time.monotonic())) as response:
        content = _read_body(response.http_response, max_bytes)
    if content is None:
        raise CallFailed("malformed", f"the reply is longer than {max_bytes:,} bytes", may_charge=True)
    return content


def _read_body(response: Any, max_bytes: int) -> bytes | None:
    """The bytes of a body as they are sent, not decompressed, or None if there are more than `max_bytes`.

    Raises TimeoutError once time is up.
    """
    content = bytearray()
    for chunk in response.iter_raw():
        content += chunk
        if len(content) > max_bytes:
            return None
        if time.monotonic() > _REQUEST_DEADLINE.get():
            raise TimeoutError
    return bytes(content)


def read_error(content: bytes) -> str:
    """The message of an error in OpenAI's format, otherwise the whole body, without JSON escapes."""
    body_text = content.decode("utf-8", "replace")
    try:
        parsed_body = json.loads(body_text)
        error = parsed_body.get("error", parsed_body) if isinstance(parsed_body, dict) else parsed_body
        message = error.get("message") if isinstance(error, dict) else error
        return message if isinstance(message, str) else json.dumps(parsed_body, ensure_ascii=False)
    except (ValueError, RecursionError):
        return body_text


def _parse_retry_after(header: str) -> float:
    """Seconds that Retry-After asks for, as a number or a date; 0 if it is neither."""
    try:
        seconds = float(header)
    except ValueError:
        seconds = 0.0
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
    return 0.0 if math.isnan(seconds) else max(0.0, seconds)
