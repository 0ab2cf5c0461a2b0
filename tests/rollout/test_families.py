"""Chat templates of real families: the same tokens turn by turn as at once, tools that are shown, ends that stop."""

from pathlib import Path

import families
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cojax.rollout.chat import PROBE_TOOL, TOOLS_SECTION, Chat, PolicyActors, names_only, no_document, parse
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.vocabulary import train_byte_tokenizer, word_tokenizer
from cojax.types import Action, Call, Message, Turn

LOOKUP = Action(calls=(Call("lookup", {"word": "jax"}),))
THOUGHT = "<think>\nI look the word up.\n</think>\n\n"
OPENINGS = {
    "user": (Message("user", "What is jax?"),),
    "system and user": (Message("system", "Be brief."), Message("user", "What is jax?")),
}
REPLIES = {
    "tool": (Message("tool", "a library"),),
    "two tools": (Message("tool", "a library"), Message("tool", "a verb")),
    "user": (Message("user", "And now?"),),
}
CHATS = {family: families.chat(family) for family in families.CONTROLS}
# A template whose calls have another form than ours, as that of Llama 3.1 does.
FOREIGN = """
{%- if tools %}{{- 'Answer with name and parameters: ' + (tools | tojson) }}{%- endif %}
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.tool_calls %}{{- '{"name": "' + message.tool_calls[0].function.name + '", "parameters": {}}' }}
{%- else %}{{- message.content }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""".strip()


def by_the_tokenizer(tokenizer: PreTrainedTokenizerFast, messages, tools=()) -> list[int]:
    said = [{"role": message.role, "content": message.content} for message in messages]
    text = tokenizer.apply_chat_template(said, tools=list(tools) or None, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False).input_ids


class Playback:
    """An engine that samples given tokens, and keeps the prompts."""

    def __init__(self, *actions: tuple[int, ...]):
        self.actions, self.prompts = list(actions), []

    def generate(self, prompt, sampling, *, session, seed) -> Completion:
        self.prompts.append(tuple(prompt))
        tokens = self.actions.pop(0)
        return Completion(tokens, (0.0,) * len(tokens), 0, "stop")


class Documented:
    """An episode with one tool."""

    def tools(self):
        return (PROBE_TOOL,)


def played(chat: Chat, actions, *messages) -> tuple[list[Turn], list[tuple[int, ...]]]:
    engine = Playback(*actions)
    actor = PolicyActors(engine, chat, Sampling(stop_tokens=chat.stops))("a", (0,))
    return [actor(Documented(), new) for new in messages], engine.prompts


# --- token-exactness and the prefix property ---


@pytest.mark.parametrize("family", CHATS)
@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("reply", REPLIES)
def test_turns_are_the_tokens_of_the_whole_conversation(family, opening, reply):
    chat, text = CHATS[family], Chat.write(LOOKUP.calls)
    turns, prompts = played(chat, [chat.encode_action(LOOKUP)] * 3, OPENINGS[opening], REPLIES[reply], REPLIES["tool"])
    said = [*OPENINGS[opening]]
    for turn, prompt, new in zip(turns, prompts, ((), REPLIES[reply], REPLIES["tool"]), strict=True):
        said += [Message("assistant", text), *new] if new else []
        assert list(prompt) == by_the_tokenizer(chat.tokenizer, said, [PROBE_TOOL])
        assert turn.action.calls == LOOKUP.calls
    for turn, before, after in zip(turns, prompts, prompts[1:], strict=False):
        assert after[: len(before) + len(turn.action_tokens)] == before + turn.action_tokens


def test_a_thought_of_qwen3_is_as_in_the_whole_conversation_until_the_user_speaks():
    """Then the template would drop it; the tokens sampled stay."""
    chat = CHATS["qwen3"]
    action = Action(THOUGHT + Chat.write(LOOKUP.calls), LOOKUP.calls)
    for reply, exact in (("tool", True), ("two tools", True), ("user", False)):
        turns, prompts = played(chat, [chat.encode_action(action)] * 2, OPENINGS["user"], REPLIES[reply])
        said = [*OPENINGS["user"], Message("assistant", action.text), *REPLIES[reply]]
        assert (list(prompts[1]) == by_the_tokenizer(chat.tokenizer, said, [PROBE_TOOL])) == exact
        assert prompts[1][: len(prompts[0])] == prompts[0]
        assert turns[0].action == action


@pytest.mark.parametrize("family", CHATS)
@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.sampled_from(["<|im_end|>", "<|eot_id|>", "<tool_call>", "</think>", "<think>", " ", "x"]), max_size=5)
)
def test_no_text_makes_a_control_token(family, pieces):
    chat, text = CHATS[family], "".join(pieces)
    controls = set(chat.tokenizer.added_tokens_decoder)

    def found(word: str) -> list[int]:
        tool = names_only(PROBE_TOOL) | {"description": word}
        opened = chat.open((Message("user", word),), [{"type": "function", "function": tool}])
        return [token for token in (*opened, *chat.extend((Message("tool", word),), True)) if token in controls]

    assert found(text) == found("y")


# --- tools ---


@pytest.mark.parametrize("family", CHATS)
@pytest.mark.parametrize("opening", OPENINGS)
def test_every_family_shows_the_tools_and_how_to_call_them(family, opening):
    text = CHATS[family].tokenizer.decode(CHATS[family].open(OPENINGS[opening], [PROBE_TOOL]))
    assert text.count('"description": "looks it up"') == 1
    assert '<tool_call>\n{"name": ' in text
    assert text.count("Be brief.") == opening.count("system")
    brief = families.chat(family, names_only)
    assert '{"name": "lookup", "arguments": ["word"]}' in brief.tokenizer.decode(
        brief.open(OPENINGS[opening], [PROBE_TOOL])
    )


def test_a_template_that_asks_for_other_calls_gets_the_section_too():
    tokenizer = families.tokenizer("qwen3")
    tokenizer.chat_template = FOREIGN
    first = Chat(tokenizer)
    for chat in (first, Chat(first.tokenizer)):  # a tokenizer that has the section keeps it
        assert chat.tokenizer.chat_template == TOOLS_SECTION + FOREIGN
        assert "parameters:" not in tokenizer.decode(chat.open(OPENINGS["user"], [PROBE_TOOL]))
        assert chat.notes[0].startswith("it does not show tools in the form that cojax parses")


_TURN = "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
_BEGIN = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"


def plain(before: str = "", condition: str = "true") -> str:
    """A template that says `before` first, then every message `m` for which the condition holds."""
    return f"{before}{{%- for m in messages %}}{{%- if {condition} %}}{_TURN}{{%- endif %}}{{%- endfor %}}{_BEGIN}"


SYSTEM_FIRST = "messages[0].role == 'system'"
REFUSES_SYSTEM = f"{{%- if {SYSTEM_FIRST} %}}{{{{ raise_exception('no system message') }}}}{{%- endif %}}"
REFUSES_TOOL = "{%- if messages[-1].role == 'tool' %}{{ raise_exception('roles alternate') }}{%- endif %}"
TOOLS_ALONE = f"{{%- if tools and not {SYSTEM_FIRST} %}}{{{{ tools | tojson }}}}{{%- endif %}}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (plain(condition="m.role != 'system'"), "shows no tools, nor the system message.*--config.model.tools=none"),
        (plain(REFUSES_SYSTEM), "shows no tools, nor the system message.*no system message.*--config.model.tools=none"),
        (plain(TOOLS_ALONE), "shows no tools beside a system message"),
        (plain(REFUSES_TOOL), "refuses messages of the roles user, assistant, tool: .*roles alternate; save one"),
        (plain("{{ 1 / 0 }}"), "refuses messages of the roles user: ZeroDivisionError"),
        (plain(condition="m.role != 'assistant'"), "does not show an action that ends in eos_token"),
    ],
    ids=["drops system", "refuses system", "tools or system", "refuses tool", "fails", "drops actions"],
)
def test_a_template_that_cannot_serve_is_refused_at_once_with_the_fix(template, message):
    tokenizer = families.tokenizer("qwen3")
    tokenizer.chat_template, tokenizer.name_or_path = template, "models/mine"
    with pytest.raises(ValueError, match=f"(?s)^the tokenizer of models/mine: .*{message}"):
        Chat(tokenizer)


def test_without_tools_a_template_may_refuse_system_messages():
    tokenizer = families.tokenizer("qwen3")
    tokenizer.chat_template = plain(REFUSES_SYSTEM)
    chat = Chat(tokenizer, no_document)
    assert list(chat.open(OPENINGS["user"], [PROBE_TOOL])) == by_the_tokenizer(tokenizer, OPENINGS["user"])


def test_a_template_may_show_tools_and_take_no_system_message():
    tokenizer = families.tokenizer("qwen3")
    tokenizer.chat_template = plain(REFUSES_SYSTEM + "{%- if tools %}{{ tools | tojson }}{%- endif %}")
    chat = Chat(tokenizer)
    assert tokenizer.decode(chat.open(OPENINGS["user"], [PROBE_TOOL])).count("looks it up") == 1


def test_a_tokenizer_that_ends_no_action_is_refused():
    tokenizer = families.tokenizer("qwen3")
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="has no eos_token; save that of the model's family"):
        Chat(tokenizer)


def test_the_callers_tokenizer_stays_as_it_is():
    tokenizer = families.tokenizer("smollm2")
    template, prompt = tokenizer.chat_template, by_the_tokenizer(tokenizer, OPENINGS["user"], [PROBE_TOOL])
    chat = Chat(tokenizer)
    assert chat.tokenizer.chat_template == TOOLS_SECTION + template
    assert list(chat.open(OPENINGS["user"], [PROBE_TOOL])) == by_the_tokenizer(
        chat.tokenizer, OPENINGS["user"], [PROBE_TOOL]
    )
    assert tokenizer.chat_template == template
    assert by_the_tokenizer(tokenizer, OPENINGS["user"], [PROBE_TOOL]) == prompt
    assert list(Chat(tokenizer, no_document).open(OPENINGS["user"], [PROBE_TOOL])) == prompt
    assert Chat(chat.tokenizer).tokenizer.chat_template == TOOLS_SECTION + template


def test_a_saved_tokenizer_renders_the_same_tokens(tmp_path: Path):
    for family, chat in CHATS.items():
        chat.tokenizer.save_pretrained(tmp_path / family)
        again = AutoTokenizer.from_pretrained(tmp_path / family)
        for opening in OPENINGS.values():
            assert list(chat.open(opening, [PROBE_TOOL])) == by_the_tokenizer(again, opening, [PROBE_TOOL])
            assert list(chat.open(opening)) == by_the_tokenizer(again, opening)


def test_without_shown_tools_a_template_stays_as_it_is():
    chat = families.chat("smollm2", no_document)
    assert chat.tokenizer.chat_template == families.tokenizer("smollm2").chat_template
    assert len(chat.notes) == 1


def test_what_a_template_does_by_itself_is_said():
    section = "it does not show tools in the form that cojax parses; cojax adds a section that does"
    adds = "if a conversation begins without a system message, it adds "
    smollm = adds + "'You are a helpful AI assistant named SmolLM, trained by Hugging Face'"
    assert {family: chat.notes for family, chat in CHATS.items()} == {
        "qwen2_5": (adds + "'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.'",),
        "qwen3": (),
        "qwen3_instruct_2507": (),
        "llama3": (section,),
        "smollm2": (section, smollm),
        "smollm2 converted": (section, smollm),
    }


# --- ends and thoughts ---


def test_every_end_of_a_text_stops_a_turn():
    for family, chat in CHATS.items():
        ends = (
            ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"] if family == "llama3" else ["<|im_end|>", "<|endoftext|>"]
        )
        assert chat.stops[0] == chat.end
        assert sorted(chat.stops) == sorted(chat.tokenizer.convert_tokens_to_ids(ends))
        for stop in chat.stops:
            sampled = (*chat.encode_action(LOOKUP)[:-1], stop)
            turns, prompts = played(chat, [sampled, sampled], OPENINGS["user"], REPLIES["tool"])
            assert turns[0].action == Action(Chat.write(LOOKUP.calls), LOOKUP.calls)
            closed = () if stop == chat.end else (chat.end,)
            assert prompts[1] == prompts[0] + sampled + closed + chat.extend(REPLIES["tool"], True)


def test_padding_of_a_policy_from_scratch_does_not_stop_it():
    for tokenizer in (word_tokenizer(["jax"], ["what is"], []), train_byte_tokenizer([], 400)):
        assert Chat(tokenizer).stops == (tokenizer.eos_token_id,)


CALL = '<tool_call>{"name": "f", "arguments": {"a": "%s"}}</tool_call>'


def test_a_call_whose_argument_holds_the_mark_of_a_thought_is_read():
    for mark in ("</think>", "<think>", "<think>x</think>", r"\"</think>", r"\\"):
        for text in (CALL % mark, THOUGHT + CALL % mark, CALL % mark + CALL % mark):
            calls = parse(text).calls
            assert {call.name for call in calls} == {"f"}
            assert len(calls) == text.count("<tool_call>")


@pytest.mark.parametrize(
    "text",
    [
        f"<think>perhaps {CALL}",
        f"<think>perhaps {CALL}</think>no",
        f"perhaps {CALL}</think>no",
        f"<think>a</think><think>{CALL}",
        f"<think>{CALL}</think>{CALL}</think>no",
    ],
)
def test_a_call_within_a_thought_is_not_made(text):
    assert parse(text).error == "no tool call found"


def test_a_call_outside_of_thoughts_is_made():
    for text in (
        f"{CALL}<think>well",
        f"with <tool_call> I could</think>{CALL}",
        f'maybe <tool_call>{{"name": "f\n</think>\n{CALL}',
        f"<think>{CALL}<think></think>{CALL}",
    ):
        assert len(parse(text).calls) == 1


def test_an_action_that_begins_within_a_thought_ends_it_before_it_calls():
    tokenizer = families.tokenizer("qwen3_instruct_2507")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "assistant\\n' }}\n{%- endif", "assistant\\n<think>\\n' }}\n{%- endif"
    )
    chat = Chat(tokenizer)
    assert tokenizer.decode(chat.open(OPENINGS["user"])).endswith("assistant\n<think>\n")
    call, end = chat._control_tokens.encode_action(CALL), tokenizer.convert_tokens_to_ids("</think>")
    assert chat.read((*call, chat.end)).error == "no tool call found"
    assert len(chat.read((end, *call, chat.end)).calls) == 1
    assert chat.read(chat.encode_action(LOOKUP)).calls == LOOKUP.calls
