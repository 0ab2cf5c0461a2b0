"""The settings of a chat model behind an endpoint: its address and the limits of its calls."""

from __future__ import annotations

import dataclasses

from cojax.explorer.llm.chat_model import check_limits
from cojax.openai_api.calls import Address
from cojax.settings.tree import LLMSettings


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
    timeout: float = LLMSettings.timeout
    deadline: float = LLMSettings.deadline
    attempts: int = 4
    concurrency: int = LLMSettings.concurrency
    max_tokens: int = LLMSettings.max_tokens
    max_tokens_per_evolution: int = 2_000_000
    max_requests_per_evolution: int = 4_000
    temperature: float = LLMSettings.temperature
    price_in: float = LLMSettings.price_in
    price_out: float = LLMSettings.price_out
    send_schema: bool = LLMSettings.send_schema
    send_seed: bool = LLMSettings.send_seed

    def __post_init__(self) -> None:
        _ = self.address
        check_limits(dataclasses.asdict(self))

    @property
    def address(self) -> Address:
        return Address(self.base_url, self.model, "llm.base_url", "llm.model")
