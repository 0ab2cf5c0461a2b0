"""What a command says of an error that ends it."""

import signal

import pytest

from cojax.evaluation import evaluate
from cojax.run import command as run
from cojax.run import configuration, processes


@pytest.mark.parametrize(("command", "ends"), [
    (run, lambda: run.train([])),
    (evaluate, lambda: evaluate.run((None,) * 4, None, 1, None)),
], ids=["run", "evaluate"])  # fmt: skip
@pytest.mark.parametrize(("error", "said"), [
    (MemoryError(), "error: this host's memory is used up: free some, then run the same command again to go on"),
    (MemoryError("8 GiB"), "error: this host's memory is used up (8 GiB): free some"),
    (ValueError("no"), "error: no"),
])  # fmt: skip
def test_an_error_is_one_line(command, ends, error, said, monkeypatch, capsys):
    def fail() -> None:
        raise error

    monkeypatch.setattr(command, "end_descendants_at_exit", lambda: None)
    for module in (command, processes) if command is evaluate else (processes,):
        monkeypatch.setattr(module, "keep_programs", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(configuration if command is run else command, "read_configuration", fail)
    with pytest.raises(SystemExit):
        ends()
    assert " ".join(capsys.readouterr().out.split()).startswith(said)
