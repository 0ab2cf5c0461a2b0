"""The settings of a model behind an endpoint: where it is, and what its calls may take."""

from __future__ import annotations

import dataclasses
from urllib.parse import urlsplit

from cojax.explorer.llm.chat_model import check_limits


@dataclasses.dataclass(frozen=True)
class ChatSettings:
    """Where and how to call `model`: `base_url` is like http://HOST:PORT/v1.

    `timeout` bounds one request and `deadline` an evolution, in seconds; a reply takes at most `attempts` requests,
    besides those refused for an optional part that the endpoint does not know, and has at most `max_tokens` tokens;
    `concurrency` requests go at once. An evolution spends at most `max_tokens_per_evolution`, prompts included, and
    `max_requests_per_evolution`: a request that could exceed them is not sent. `price_in` and `price_out` are per
    million tokens, in any currency. Raises ValueError for settings that cannot work.
    """

    base_url: str
    model: str
    timeout: float = 120.0
    deadline: float = 3600.0
    attempts: int = 4
    concurrency: int = 8
    max_tokens: int = 2048
    max_tokens_per_evolution: int = 2_000_000
    max_requests_per_evolution: int = 4_000
    temperature: float = 0.7
    price_in: float = 0.0
    price_out: float = 0.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if "@" in parts.netloc or parts.query:
            raise ValueError(
                "llm.base_url holds credentials or a query; leave them out: the key comes from OPENAI_API_KEY"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"llm.base_url is {self.base_url!r}; expected an address like http://HOST:PORT/v1, "
                "set by --config.llm.base_url"
            )
        if not self.model:
            raise ValueError("llm.model is empty; name the model that the endpoint serves by --config.llm.model")
        check_limits(dataclasses.asdict(self))
