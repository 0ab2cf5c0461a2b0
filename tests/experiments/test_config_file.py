"""What is wrong with a user's own experiment file is one line, with the line of the file where there is one."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from absl.testing import flagsaver

from cojax.run.configuration import make_file_record
from cojax.settings import flags
from cojax.settings.config_file import FlagError, load_config, record_source
from cojax.storage.files import write_json
from experiments import desk


def written(folder: Path, line: str) -> str:
    """A file that begins with the desk and has this line of its own, the sixth."""
    path = folder / "mine.py"
    path.write_text(
        "from experiments import desk\nfrom ml_collections import ConfigDict\n\ndef get_config():\n"
        f"    config = desk.get_config()\n    {line}\n    return config\n"
    )
    return str(path)


def refusal(given: str) -> str:
    with pytest.raises(FlagError) as caught:
        load_config(given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


LINES = (
    ("config.stepz = 3", ": stepz is not a setting; did you mean steps or "),
    ("config.llm.timeuot = 3", ": llm.timeuot is not a setting; did you mean llm.timeout? "),
    ("config.lerner.loss = 'grpo'", ":6: 'lerner' is not a setting. Did you mean \"learner\" "),
    ("config.KL_coefficient = 1", ": KL_coefficient is not a setting; did you mean learner.loss_settings.kl_"),
    ("config.steps = 'abc'", ":6: steps is 'abc'; expected a whole number at least 0"),
    ("config.steps = 1.5", ":6: steps is 1.5; expected a whole number at least 0"),
    ("config.steps = __import__('numpy').int64(3)", ":6: steps is 3, of the type numpy.int64; expected a whole number"),
    ("config.steps = True", ": steps is True; expected a whole number at least 0"),
    ("config.steps = None", ": steps is None; expected a whole number at least 0"),
    ("config.learner.loss_settings.kl_coefficient = 'x'", ":6: learner.loss_settings.kl_coefficient is 'x'; expected"),
    ("config.llm = 3", ":6: llm is 3; expected a section"),
    ("config.signal_settings.rare = 3", ":6: signal_settings.rare is 3; expected a section"),
    ("config.signal_settings.forgetting = 3", ": signal_settings.forgetting is 3; expected the section of a signal"),
    ("del config.steps", ": steps is missing from the configuration; begin with base.get_config()"),
    ("1 / 0", ":6: ZeroDivisionError: division by zero"),
    ("import no_such_module", ":6: ModuleNotFoundError: No module named 'no_such_module'"),
    ("open('/no/such/file')", ":6: FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'"),
    ("{}['abc']", ":6: KeyError: abc"),
    ("config.steps.foo = 3", ":6: AttributeError: 'int' object has no attribute 'foo'"),
    ("raise ValueError('two\\nlines')", ":6: ValueError: two lines"),
    ("raise SystemExit(0)", ":6: SystemExit: 0"),
    ("raise RuntimeError", ":6: it ends with RuntimeError"),
    ("config = None", ": get_config() returns None; expected a configuration"),
    ("x = (", ":6: '(' was never closed"),
)  # fmt: skip


@pytest.mark.parametrize(("line", "said"), LINES)
def test_a_mistake_in_a_file_is_one_line_with_its_place(line: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, line)
    assert refusal(path).startswith(path + said)


@pytest.mark.parametrize("text", ["", "get_config = 3\n", "def getconfig():\n    pass\n"])
def test_a_file_without_the_function_is_told_so(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(text)
    assert "mine.py defines no function get_config(); see experiments/desk.py for one" in refusal(f"{tmp_path}/mine.py")


def test_arguments_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from experiments import desk\ndef get_config(seed):\n    config = desk.get_config()\n"
        "    config.seed = int(seed)\n    return config\n"
    )
    assert load_config(f"{path}:7").seed == 7
    assert "get_config() missing 1 required positional argument: 'seed'" in refusal(str(path))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "--config is empty; expected a file with get_config()"),
        ("experiments/dsk.py", "--config=experiments/dsk.py: there is no such file; did you mean experiments/desk.py?"),
        ("desk.py", "--config=desk.py: there is no such file; did you mean experiments/desk.py?"),
        ("nope.py", "--config=nope.py: there is no such file; expected a file with get_config(), such as"),
        (
            "experiments/config_fil.py",
            "--config=experiments/config_fil.py: there is no such file; expected a file with",
        ),
        ("experiments/check.py", "--config=experiments/check.py: there is no such file; expected a file with"),
        ("experiments", "--config=experiments: there is no such file; "),
        ("x" * 300 + ".py", "File name too long"),
    ],
)
def test_a_name_of_no_file(given: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert said in refusal(given)


def test_outside_of_the_checkout_our_experiments_are_suggested_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no such file; did you mean experiments/desk.py?" in refusal("experiments/dsk.py")
    written(tmp_path, "pass")
    (tmp_path / "nope.py").symlink_to(tmp_path / "removed")
    assert "did you mean mine.py?" in refusal("mien.py")


def test_lists_and_whole_numbers_are_taken_where_nothing_is_lost(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, "config.explorer.stretch, config.optimizer.learning_rate = [0, 1], 1"))
    assert (config.explorer.stretch, config.optimizer.learning_rate) == ((0, 1), 1.0)
    assert re.match("<class 'float'>", str(type(config.optimizer.learning_rate)))


def test_a_file_is_described_by_its_content(tmp_path: Path) -> None:
    path = Path(written(tmp_path, "pass"))
    told = record_source(path)
    assert told == {
        "path": str(path), "hash": hashlib.sha256(path.read_bytes()).hexdigest(), "commit": "unknown",
    }  # fmt: skip


def test_a_run_notes_its_file_and_one_that_goes_on_by_its_folder_keeps_the_note(tmp_path: Path) -> None:
    path, workdir = Path(written(tmp_path, "pass")), tmp_path / "run"
    plain = json.loads(json.dumps(desk.get_config().to_dict()))
    with flagsaver.flagsaver():
        flags.parse_flags(["run", f"--config={path}"])
        noted = make_file_record()
    assert noted == {"file": record_source(path)}
    path.unlink()  # a run goes on without it
    for before in (noted, {}):
        write_json(workdir / "config.json", {"config": plain, **before})
        with flagsaver.flagsaver():
            flags.parse_flags(["run", f"--config=experiments/continued.py:{workdir}"])
            assert make_file_record() == before
    write_json(tmp_path / "given.json", {"steps": 3})
    with flagsaver.flagsaver():
        flags.parse_flags(["run", f"--config=experiments/given.py:{tmp_path / 'given.json'}"])
        assert make_file_record() == {}
