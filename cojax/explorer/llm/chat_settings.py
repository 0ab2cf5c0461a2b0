"""The settings of a chat model behind an endpoint: its address and the limits of its calls."""

from __future__ import annotations

import dataclasses

from cojax.explorer.llm.chat_model import check_limits
from cojax.openai_api.calls import Address


@dataclasses.dataclass(frozen=True)
class ChatSettings:
    """Where and how to call `model`: `base_url` is like http://HOST:PORT/v1.

    `timeout` bounds one request and `deadline` an evolution, in seconds. A reply takes at most `attempts` requests and
    has at most `max_tokens` tokens. At most `concurrency` requests run in parallel. An evolution spends at most
    `max_tokens_per_evolution` tokens, prompts included, and `max_requests_per_evolution` requests: a request that could
    exceed them is not sent. `price_in` and `price_out` are per million tokens, in any currency. Set `send_schema` to
    False for an endpoint that refuses `response_format`, and `send_seed` for one that refuses `seed`. Raises ValueError
    for settings that cannot work.
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
    send_schema: bool = True
    send_seed: bool = True

    def __post_init__(self) -> None:
        _ = self.address
        check_limits(dataclasses.asdict(self))

    @property
    def address(self) -> Address:
        return Address(self.base_url, self.model, "llm.base_url", "llm.model")
