"""A checkpoint as a model folder: the same logits, there whole or not at all, and errors that say what is missing."""

import json
import shutil

import jax
import numpy as np
import pytest
import tensorstore
from trained_runs import config, damage, make_run
from transformers import PreTrainedTokenizerFast

import cojax
from cojax.policy.pretrained import Policy
from cojax.run.export import export, main
from cojax.run.policies import keep_tokenizer
from cojax.run.trained import of_run
from cojax.storage.checkpoint import _list_files
from cojax.storage.checksums import CHECKSUM_KEY, add_checksum

TOKENS = [[5, 9, 2, 30, 7], [1, 1, 8, 4, 3]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """(workdir, learner, states) of a run that learned all its parameters."""
    workdir = tmp_path_factory.mktemp("plain") / "run"
    return workdir, *make_run(workdir, config())


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """The same with adapters of rank 2."""
    workdir = tmp_path_factory.mktemp("adapted") / "run"
    return workdir, *make_run(workdir, config(learner__lora__rank=2))


@pytest.fixture
def copy(request, tmp_path):
    """A run that may be damaged."""
    shutil.copytree(request.getfixturevalue(request.param)[0], tmp_path / "run")
    return tmp_path / "run"


def refusal(capsys, *arguments) -> str:
    assert main([str(argument) for argument in arguments]) == 1
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("kind", ["plain", "adapted"])
def test_the_folder_gives_the_logits_of_the_policy_to_the_bit(kind, request, tmp_path):
    workdir, learner, states = request.getfixturevalue(kind)
    assert main([f"--workdir={workdir}", "--step=1", str(tmp_path / "model")]) == 0
    expected = Policy(learner.config, learner.policy(states[0])).logits(TOKENS)
    found = cojax.load(tmp_path / "model").logits(TOKENS)
    assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()
    assert {path.name for path in (tmp_path / "model").iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja",
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_without_a_step_it_is_the_newest_sound_one_and_an_empty_folder_will_do(plain, tmp_path):
    workdir, learner, states = plain
    shutil.copytree(workdir, tmp_path / "run")
    (tmp_path / "model").mkdir()
    damage(tmp_path / "run/checkpoints/2")
    assert main([f"--workdir={tmp_path / 'run'}", str(tmp_path / "model")]) == 0
    expected = Policy(learner.config, states[0].params).logits(TOKENS)
    assert np.array_equal(cojax.load(tmp_path / "model").logits(TOKENS), expected)


def test_another_dtype_is_written_and_declared(plain, tmp_path):
    assert main([f"--workdir={plain[0]}", "--dtype=bfloat16", str(tmp_path / "model")]) == 0
    loaded = cojax.load(tmp_path / "model")
    assert json.loads((tmp_path / "model/config.json").read_text())["dtype"] == "bfloat16"
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(loaded.params)} == {"bfloat16"}


def test_what_is_there_is_not_overwritten(plain, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for place in ("full", "file"):
        assert "is there already and not an empty folder" in refusal(capsys, f"--workdir={plain[0]}", tmp_path / place)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "notes"]


def test_a_failure_on_the_way_leaves_nothing(plain, tmp_path, monkeypatch):
    policy = of_run(plain[0])

    def full_disk(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(policy.tokenizer, "save_pretrained", full_disk)
    with pytest.raises(OSError, match="The disk is full"):
        export(policy, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_full_at_the_tokenizer_is_one_error(plain, tmp_path, monkeypatch):
    def full_disk(self, folder):
        raise Exception("No space left on device (os error 28)")  # as the package tokenizers does

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", full_disk)
    with pytest.raises(OSError, match="The disk is full"):
        export(of_run(plain[0]), tmp_path / "model")
    with pytest.raises(OSError, match=r"cannot write .*kept: No space left on device. The disk is full"):
        keep_tokenizer(of_run(plain[0]).tokenizer, tmp_path / "kept", has_begun=False)
    assert not list(tmp_path.iterdir())


def test_no_such_step_run_or_a_damaged_one_is_named(plain, tmp_path, capsys):
    workdir, out = plain[0], tmp_path / "model"
    assert "no step 7 in" in (said := refusal(capsys, f"--workdir={workdir}", "--step=7", out))
    assert "it has 1, 2" in said
    assert "is not a run directory" in refusal(capsys, f"--workdir={tmp_path / 'none'}", out)
    shutil.copytree(workdir, tmp_path / "run")
    damage(tmp_path / "run/checkpoints/1")
    said = refusal(capsys, f"--workdir={tmp_path / 'run'}", "--step=1", out)
    assert "checkpoints/1 is damaged" in said
    assert "Choose another step (2)" in said
    shutil.rmtree(tmp_path / "run/tokenizer")
    assert "no tokenizer in" in refusal(capsys, f"--workdir={tmp_path / 'run'}", "--step=2", out)
    assert not out.exists()


@pytest.mark.parametrize("copy", ["adapted"], indirect=True)
def test_adapters_without_their_base_are_refused(copy, tmp_path, capsys):
    shutil.move(copy / "base", tmp_path / "elsewhere")
    assert "base" in (said := refusal(capsys, f"--workdir={copy}", tmp_path / "model"))
    assert "is gone" in said
    assert main([f"--workdir={copy}", f"--base={tmp_path / 'elsewhere'}", str(tmp_path / "model")]) == 0


@pytest.mark.parametrize("copy", ["adapted"], indirect=True)
def test_adapters_beside_another_base_are_refused(copy, plain, tmp_path, capsys):
    export(of_run(plain[0]), tmp_path / "other")
    said = refusal(capsys, f"--workdir={copy}", f"--base={tmp_path / 'other'}", tmp_path / "model")
    assert "is not what the adapters of" in said


@pytest.mark.parametrize("copy", ["plain"], indirect=True)
def test_a_run_of_before_says_its_shape_by_its_settings_and_a_changed_one_is_named(copy, tmp_path, capsys):
    (copy / "model.json").unlink()
    assert main([f"--workdir={copy}", str(tmp_path / "model")]) == 0
    settings = json.loads((copy / "config.json").read_text())
    settings["config"]["model"]["shape"]["intermediate_size"] = 48
    (copy / "config.json").write_text(json.dumps(settings))
    assert "does not fit its own settings" in refusal(capsys, f"--workdir={copy}", tmp_path / "other")


def reseal(checkpoint):
    """As someone does who computes all checksums anew."""
    record = json.loads((checkpoint / "host.json").read_text())
    record["files"] = _list_files(checkpoint / "arrays")
    (checkpoint / "host.json").write_text(
        json.dumps(add_checksum({k: v for k, v in record.items() if k != CHECKSUM_KEY}))
    )


@pytest.mark.parametrize("copy", ["plain"], indirect=True)
@pytest.mark.parametrize(
    ("forged", "said"),
    [
        ({"shape": [3000, 3000]}, "does not fit its own settings"),
        ({"chunks": [4096, 4096]}, "in pieces of (4096, 4096)"),
    ],
)
def test_a_forged_shape_is_refused_before_it_takes_memory(copy, tmp_path, capsys, forged, said):
    checkpoint = copy / "checkpoints/2"
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{checkpoint / 'arrays'}/"}).result()
    key = b"params.embed.embedding/.zarray"
    store.write(key, json.dumps({**json.loads(store.read(key).result().value), **forged}).encode()).result()
    reseal(checkpoint)
    assert said in refusal(capsys, f"--workdir={copy}", tmp_path / "model")


@pytest.mark.parametrize("copy", ["plain"], indirect=True)
def test_arrays_that_orbax_cannot_read_are_one_error(copy, tmp_path, capsys):
    (copy / "checkpoints/2/arrays/_METADATA").write_text("{}")
    reseal(copy / "checkpoints/2")
    assert "2/arrays cannot be read: " in refusal(capsys, f"--workdir={copy}", tmp_path / "model")


@pytest.mark.parametrize("copy", ["plain"], indirect=True)
def test_a_tokenizer_of_several_templates_is_written_whole(copy, tmp_path):
    (copy / "tokenizer/additional_chat_templates").mkdir()
    (copy / "tokenizer/additional_chat_templates/tools.jinja").write_text("some")
    assert main([f"--workdir={copy}", str(tmp_path / "model")]) == 0
    assert (tmp_path / "model/additional_chat_templates/tools.jinja").read_text() == "some"


@pytest.mark.parametrize("copy", ["plain"], indirect=True)
@pytest.mark.parametrize("forged", [{"rank": "x"}, {"rank": 2, "targets": 5}, {"rank": 2, "other": 1}])
def test_forged_adapters_are_one_error(copy, tmp_path, capsys, forged):
    settings = json.loads((copy / "config.json").read_text())
    settings["config"]["learner"]["lora"].update(forged)
    (copy / "config.json").write_text(json.dumps(settings))
    assert "holds no settings of a run" in refusal(capsys, f"--workdir={copy}", tmp_path / "model")


@pytest.mark.real
def test_transformers_loads_the_folder_unchanged(plain, tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    workdir, learner, states = plain
    assert main([f"--workdir={workdir}", "--step=2", str(tmp_path / "model")]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        found = model(torch.tensor(TOKENS)).logits.numpy()
    expected = np.asarray(Policy(learner.config, states[1].params).logits(TOKENS))
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "mail ana"}], tokenize=False)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
