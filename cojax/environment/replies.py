"""Checks and bounds an environment's replies: the right shape, and text that any tokenizer takes."""

from collections.abc import Sequence

from cojax.types import ROLES, Check, Evaluation, Message, Observation

# Messages that are kept of one observation, and of the opening.
MOST_MESSAGES = 256
# The most checks of one verdict, and characters that are kept of a check's name.
_CHECKS, _NAME = 10_000, 10_000


def messages(reply: Sequence[Message], limit: int) -> tuple[Message, ...]:
    """The messages, cut to `limit` characters in all, with a note of the cut. Raises TypeError for another shape."""
    result: list[Message] = []
    for message in reply[:MOST_MESSAGES]:
        if not (isinstance(message, Message) and isinstance(message.content, str) and _is_role(message.role)):
            raise TypeError(
                f"a message is {message!r:.100}; expected a Message with role and content as text, "
                f"and as role one of {', '.join(sorted(ROLES))}"
            )
        content = _text(message.content[:limit])
        if cut := len(message.content) - len(content):
            content = f"{content}\n[{cut} characters cut]"
        limit = max(0, limit - len(content))
        result.append(Message(message.role, content))
    if cut := len(reply) - len(result):
        result.append(Message(result[-1].role, f"[{cut} messages cut]"))
    return tuple(result)


def observation(reply: Observation, limit: int) -> Observation:
    """The observation with bounded messages and plain truth values. Raises TypeError for another shape."""
    if not isinstance(reply, Observation):
        raise TypeError(f"step returned {type(reply).__name__}; expected an Observation")
    return Observation(messages(reply.messages, limit), ok=bool(reply.ok), done=bool(reply.done))


def evaluation(reply: Evaluation) -> Evaluation:
    """The evaluation with plain numbers and text. Raises TypeError for another shape, ValueError out of bounds."""
    if not isinstance(reply, Evaluation):
        raise TypeError(f"evaluate returned {type(reply).__name__}; expected an Evaluation")
    reward, partial = float(reply.reward), float(reply.partial)
    for name, share in (("reward", reward), ("partial reward", partial)):
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"{name} {share!r}; expected a number in [0, 1]")
    if len(reply.checks) > _CHECKS:
        raise ValueError(f"{len(reply.checks):,} checks; expected at most {_CHECKS:,}")
    checks = tuple(Check(_text(str(check.name)[:_NAME]), bool(check.passed)) for check in reply.checks)
    return Evaluation(reward, checks, partial)


def _is_role(role: object) -> bool:
    return isinstance(role, str) and role in ROLES


def _text(text: str) -> str:
    """The text with "?" for half a surrogate pair, which a Python string may hold but no encoding can represent."""
    return text.encode("utf-8", "replace").decode()
