"""Tokenizers and warm starts made from an environment's own documentation and solutions."""

import builtins
import dataclasses
import json
from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict

from cojax.environment import play
from cojax.environment.replay import follow
from cojax.rollout.chat import Chat, names_only
from cojax.rollout.vocabulary import train_byte_tokenizer
from cojax.run import initial_policy, policies, trained
from cojax.run.initial_policy import find_demonstrations
from cojax.run.initial_policy import initial_policy as begin
from cojax.run.policies import keep_tokenizer, make_word_tokenizer, read_model, texts, train_tokenizer
from cojax.run.processes import ALONE
from cojax.settings.presets import apply_preset
from cojax.storage.checkpoint import CheckpointError
from cojax.types import Action, Call, Message, Observation, Task
from cojax.warm_start import demonstrate
from experiments import bfcl
from tests.counter_environment import CounterEnvironment, CounterEpisode

ADD, FINISH = Action(calls=(Call("add", {"by": 1}),)), Action(calls=(Call("finish"),))
SPLITS = {"dev": (1, 2, 3), "held_out": (4, 5), "eval": (3, 4), "bare": (6,)}


@dataclasses.dataclass(frozen=True)
class Splits(CounterEnvironment):
    """Counts in splits of its own, with solutions but in the split `bare`."""

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        targets = SPLITS[split][:count]
        solve = split != "bare"
        return tuple(
            Task("counter", f"count to {split} {n}", {"target": n}, (ADD,) * (n * solve) + (FINISH,) * solve)
            for n in targets
        )


def config(**warm_start) -> ConfigDict:
    made = bfcl.get_config()
    made.policy = "tiny"
    made = apply_preset(made)
    made.evaluation.split = "held_out"
    made.model.vocabulary = 300
    made.warm_start.update(warm_start)
    return made


def test_what_is_said_is_documentation_and_solved_tasks():
    found = list(texts(Splits(), Splits().tasks("dev", 2)))
    assert found[1] == '{"name": "add", "arguments": []}'
    assert found[4:] == [
        "count to dev 1", '<tool_call>\n{"name": "add", "arguments": {"by": 1}}\n</tool_call>', "1",
        '<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>', "ok",
        "count to dev 2", '<tool_call>\n{"name": "add", "arguments": {"by": 1}}\n</tool_call>', "1",
        '<tool_call>\n{"name": "add", "arguments": {"by": 1}}\n</tool_call>', "2",
        '<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>', "ok",
    ]  # fmt: skip
    assert list(texts(Splits(), Splits().tasks("bare", 2)))[4:] == ["count to bare 6"]


def test_no_held_out_query_reaches_the_trainer(monkeypatch):
    seen: list[str] = []

    def train(texts, size):
        seen.extend(texts)
        return "tokenizer"

    monkeypatch.setattr(policies, "train_byte_tokenizer", train)
    assert train_tokenizer(config(), Splits()) == "tokenizer"
    assert sum(text.startswith("count to dev") for text in seen) == 3
    assert not [text for text in seen if "held_out" in text or "eval" in text or "bare" in text]


def test_a_policy_from_scratch_has_a_vocabulary_of_whole_sixteens():
    tokenizer, shape = read_model(config(), Splits())
    assert len(tokenizer) <= 300
    assert shape.vocab_size == 16 * (1 + (len(tokenizer) - 1) // 16)
    assert (shape.hidden_size, shape.num_hidden_layers) == (128, 2)


def test_the_dtype_that_a_run_chose_stays_on_another_machine(tmp_path, monkeypatch):
    began = config()
    began.model.dtype, began.workdir = "auto", str(tmp_path)
    for module in (policies, trained):
        monkeypatch.setattr(module, "choose_compute_dtype", lambda: "bfloat16")
    settled = policies.settle_model(began)
    assert settled.model.dtype == "bfloat16"
    assert read_model(began, Splits())[1].dtype == read_model(settled, Splits())[1].dtype == "bfloat16"
    (tmp_path / "config.json").write_text(json.dumps({"config": settled.to_dict()}))
    for module in (policies, trained):
        monkeypatch.setattr(module, "choose_compute_dtype", lambda: "float32")
    assert policies.settle_model(began).model.dtype == "bfloat16"
    settled.model.dtype = ""  # as the model folder says
    (tmp_path / "config.json").write_text(json.dumps({"config": settled.to_dict()}))
    assert policies.settle_model(began).model.dtype == ""
    began.workdir = str(tmp_path / "another")
    assert policies.settle_model(began).model.dtype == "float32"


def test_an_environment_without_a_lexicon_has_no_words():
    with pytest.raises(ValueError, match=r"offers no lexicon.*--config\.model\.tokenizer=bytes"):
        make_word_tokenizer(config(), Splits())


def test_demonstrations_are_the_solutions_of_a_split():
    found = find_demonstrations(config(split="dev", demonstrations=2), Splits(), (0.0, 0.0))
    assert [(task.query, len(actions)) for task, actions in found] == [("count to dev 1", 2), ("count to dev 2", 3)]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("", r"offers no demonstrations.*--config\.warm_start\.split.*--config\.warm_start\.steps=0"),
        ("bare", r"split 'bare' of environment 'counter' brings no solutions"),
        ("held_out", r"2 of the 2 tasks of warm_start\.split 'held_out' are also in evaluation\.split"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(split, message):
    with pytest.raises(ValueError, match=message):
        find_demonstrations(config(split=split), Splits(), (0.0, 0.0))


@dataclasses.dataclass
class TurnEpisode(CounterEpisode):
    """An action without calls is the end of a turn, as in a dialogue with a user."""

    def step(self, action: Action) -> Observation:
        if action.calls:
            return super().step(action)
        self.steps += 1
        return Observation((Message("user", "and now?"),)) if self.steps < 3 else Observation(done=True)


def test_the_end_of_a_turn_is_demonstrated_by_the_end_token_alone():
    environment = Splits()
    tokenizer, _ = read_model(config(), environment)
    chat = Chat(tokenizer, names_only)
    task = Task("counter", "x", {"target": 1}, (ADD, Action(), Action()))
    turns = _Turns()
    tokens, mask = next(demonstrate(turns, chat, [(task, task.solution)]))
    assert play(turns, task, follow(task.solution), max_turns=3).outcome == "finished"
    learned = [token for token, own in zip(tokens, mask, strict=True) if own]
    assert learned == [*chat.encode_action(ADD), chat.end, chat.end]


class _Turns(Splits):
    def start(self, task: Task) -> TurnEpisode:
        episode = TurnEpisode.__new__(TurnEpisode)
        CounterEpisode.__init__(episode, task, self.on_step, self.on_start)
        return episode


def test_demonstrations_longer_than_a_row_are_counted_and_left_out(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path))
    settings = config(split="dev", steps=1, batch_size=2, check_every=1)
    settings.model.shape.update({"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1})
    environment = Splits()
    tokenizer, shape = read_model(settings, environment)
    chat = Chat(tokenizer, names_only)
    solved = [(task, task.solution) for task in environment.tasks("dev", 3)]
    lengths = [len(tokens) for tokens, _ in demonstrate(environment, chat, solved)]
    settings.engine.max_length = settings.learner.row_length = lengths[1]
    assert lengths[2] > lengths[1] > lengths[0]
    learned = []

    def train(state, learner, engine, demonstrations, *rest, **settings):
        learned.append([len(tokens) for tokens, _ in demonstrations])
        return state, [{"step": 1, "loss": 0.5, "success": 0.25}], 2

    monkeypatch.setattr(initial_policy.warm_start, "train_policy", train)
    monkeypatch.setattr(initial_policy, "rehearse", lambda learner, state, sizes: state)
    made = [begin(settings, _made(environment, chat, shape), lambda step: 0.25, tuple) for _ in range(2)]
    assert learned == [lengths[:2]]  # once: the second time it comes from the cache
    (first, origin), (again, _) = made
    assert (first["embed"]["embedding"] == again["embed"]["embedding"]).all()
    line = "3 demonstrations (1 too long for a row and left out), 1 batches, loss 0.500, dev success 25.0 %"
    told = "policy: from scratch, shown 2 demonstrations once each, learned by all weights"
    assert [(said := capsys.readouterr().out).count(line), said.count(told)] == [2, 2]
    assert origin["dropped"] == 1
    settings.engine.max_length = lengths[0]
    with pytest.raises(ValueError, match=f"1 of 3 demonstrations fit the {lengths[0]} tokens"):
        begin(settings, _made(environment, chat, shape), lambda step: 0.25, tuple)


def _made(environment, chat, model):
    return SimpleNamespace(environment=environment, chat=chat, model=model, engine=_Engine(), mesh=None, together=ALONE)


class _Engine:
    def load(self, weights) -> None:
        pass


def test_without_steps_the_policy_is_random(capsys):
    settings = config(steps=0)
    settings.model.shape.update({"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1})
    tokenizer, shape = read_model(settings, Splits())
    made = (begin(settings, _made(Splits(), Chat(tokenizer), shape), float, tuple) for _ in range(2))
    (first, origin), (again, _) = made
    assert (first["embed"]["embedding"] == again["embed"]["embedding"]).all()
    assert origin == {"folder": "", "shown": 0}
    assert "policy: from scratch, shown no demonstrations (warm_start.steps=0)" in capsys.readouterr().out


def test_a_run_goes_on_with_the_tokenizer_it_began_with(tmp_path):
    tokenizer, _ = read_model(config(), Splits())
    keep_tokenizer(tokenizer, tmp_path, has_begun=False)
    keep_tokenizer(tokenizer, tmp_path, has_begun=True)
    other = train_byte_tokenizer(["something else, something else"], 300)
    with pytest.raises(ValueError, match=f"no longer the one in {tmp_path} that this run began with"):
        keep_tokenizer(other, tmp_path, has_begun=True)
    keep_tokenizer(other, tmp_path, has_begun=False)


def test_what_the_policy_is_shown_and_what_its_template_adds_are_printed(capsys):
    tokenizer = train_byte_tokenizer([], 300)
    tokenizer.chat_template = (
        "{{ '<|im_start|>system\\nYou are Nobody.<|im_end|>\\n' if messages[0].role != 'system' }}"
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
        "{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"
    )
    policies.announce(Chat(tokenizer, names_only), "brief")
    assert capsys.readouterr().out.splitlines() == [
        "tools: their documentation is cut to names and arguments (model.tools=brief)",
        "template: it does not show tools in the form that cojax parses; cojax adds a section that does",
        "template: if a conversation begins without a system message, it adds 'You are Nobody.'",
    ]


def test_a_tokenizer_that_is_code_is_refused_and_nobody_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(builtins, "input", lambda *prompt: "y")
    train_byte_tokenizer(["a b c"], 300).save_pretrained(tmp_path)
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    made = config()
    made.model.path = str(tmp_path)
    for read in (lambda: read_model(made, Splits()), lambda: trained.read_folder_policy(tmp_path, None)):
        with pytest.raises((ValueError, CheckpointError), match="contains custom code") as refused:
            read()
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists()
