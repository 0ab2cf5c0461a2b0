"""Short ways to call a chat model at the scripted server."""

import pytest
from chat_server import ChatServer
from pydantic import BaseModel

from cojax.explorer.llm.chat_client import ChatClient
from cojax.explorer.llm.chat_model import Budget, ChatFailure, Journal
from cojax.settings.tree import LLMSettings
from cojax.types import Message

KEY = "sk-very-secret-0123456789"
HELLO = (Message("user", "hello"),)


class Word(BaseModel):
    word: str


def client(server: ChatServer, journal: Journal | None = None, attempts: int = 4, **settings) -> ChatClient:
    few = {"timeout": 5.0, "max_tokens": 50, "max_tokens_per_evolution": 2_000_000, "max_requests_per_evolution": 4_000}
    own = LLMSettings(server.url, "m", **{**few, **settings})
    return ChatClient(own, journal, attempts=attempts)


def reply(chat_model: ChatClient, budget: Budget | None = None, messages=HELLO, seed: int = 1, **settings):
    return chat_model.reply(messages, budget=budget or chat_model.begin(), seed=seed, place="0/test", **settings)


def failure(chat_model: ChatClient, budget: Budget | None = None, **settings) -> ChatFailure:
    with pytest.raises(ChatFailure) as caught:
        reply(chat_model, budget, **settings)
    return caught.value


def accounts(chat_model: ChatClient, budget: Budget) -> tuple[int, int]:
    """Tokens and requests that are paid; the figures add up to the tokens."""
    figures = chat_model.figures()
    paid = chat_model.settings.max_tokens_per_evolution - budget.tokens
    assert figures["tokens_in"] + figures["tokens_out"] + figures["tokens_lost"] == paid
    return paid, chat_model.settings.max_requests_per_evolution - budget.requests
