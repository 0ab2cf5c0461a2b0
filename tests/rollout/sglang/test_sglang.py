"""The engine against fake servers that misbehave on command, as a real one cannot be made to."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from chat_endpoint import serving
from fake_sglang import FakeServer, ask, hang_on, until, weights
from patience import patience

from cojax.environment import EngineError
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.sglang.client import Connections, RequestFailed, RequestRefused, ServerClient
from cojax.rollout.sglang.engine import WeightsFolder
from cojax.rollout.sglang.server import LabelledWeights
from cojax.settings.tree import SGLangSettings


def test_conversations_stay_where_their_prefix_is_and_new_ones_go_where_there_are_fewest(pair, make) -> None:
    engine = make(pair)
    engine.load(weights(0))
    for turn in range(3):
        for number in range(6):
            assert ask(engine, f"s{number}").tokens == (7, 7, 7), turn
    assert [server.count("generate") for server in pair] == [9, 9]
    homes = {body["rid"]: index for index, server in enumerate(pair) for body in server.bodies if "rid" in body}
    assert len(homes) == 18
    for number in (0, 2, 4):
        engine.release(f"s{number}")
    until(lambda: sorted(server.session_count for server in engine.fleet.servers) == [0, 3])
    for number in range(10, 13):
        ask(engine, f"s{number}")
    assert sorted(server.session_count for server in engine.fleet.servers) == [3, 3]


def test_each_request_says_what_the_policy_needs(pair, make) -> None:
    engine = make(pair[:1])
    engine.load(weights(0))
    engine.generate([5] * 60, Sampling(0.9, 50, (8, 9)), session="a", seed=(1, 2))
    [body] = [body for body in pair[0].bodies if "input_ids" in body]
    assert (body["input_ids"], body["return_logprob"]) == ([5] * 60, True)
    asked = body["sampling_params"]
    assert (asked["temperature"], asked["max_new_tokens"], asked["stop_token_ids"]) == (0.9, 4, [8, 9])
    assert 0 <= asked["sampling_seed"] < 2**63
    ask(engine)
    ask(engine)
    seeds = [body["sampling_params"]["sampling_seed"] for body in pair[0].bodies if "input_ids" in body]
    assert seeds[0] == seeds[1] == seeds[2]
    engine.generate([5], Sampling(), session="a", seed=(1, 3))
    last = [body for body in pair[0].bodies if "input_ids" in body][-1]
    assert last["sampling_params"]["sampling_seed"] != seeds[0]


def test_a_sync_pauses_updates_continues_and_asks_for_the_version(pair, make) -> None:
    engine = make(pair, limits=SGLangSettings(probe_every=60.0))
    engine.load(weights(4))
    for server in pair:
        steps = ["pause_generation", "update_weights_from_disk", "continue_generation", "model_info"]
        assert server.calls == steps
        assert server.bodies[0] == {"mode": "retract"}
        assert server.bodies[1]["flush_cache"] is True
        assert server.bodies[1]["model_path"].endswith("/weights/4")
        assert (Path(server.bodies[1]["model_path"]) / "model.safetensors").exists()
    assert ask(engine).weights_version == 4


def test_the_newest_two_versions_stay_on_disk(pair, make, tmp_path: Path) -> None:
    engine = make(pair)
    for version in (3, 4, 5, 5):
        engine.load(weights(version))
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["5"]
    engine.load(weights(6))
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["5", "6"]


def test_a_dead_server_costs_only_its_requests_and_is_healed_before_it_gets_more(pair, make) -> None:
    engine = make(pair)
    engine.load(weights(0))
    ask(engine, "a"), ask(engine, "b")
    pair[0].close()
    for number in range(8):
        assert ask(engine, f"s{number}").weights_version == 0
    engine.load(weights(1))  # one acknowledges, the other is left out
    port = pair[0].port
    pair[0] = FakeServer(port)  # back, with the weights of its start
    until(lambda: pair[0].count("update_weights_from_disk") == 1)
    until(lambda: all(server.is_up for server in engine.fleet.servers))
    before = pair[0].count("generate")
    assert before == 0
    assert {ask(engine, f"t{number}").weights_version for number in range(8)} == {1}
    assert pair[0].count("generate") > 0


def replace_tokens(answer: dict, token: float) -> None:
    """Puts this token in the place of every one."""
    answer["output_ids"] = [token] * 3
    answer["meta_info"]["output_token_logprobs"] = [[-1.5, token, None]] * 3


def replace_spans(answer: dict, *ends: int) -> None:
    """Divides the tokens into stretches that end at these positions, all of one version."""
    label = answer["meta_info"]["weight_versions"][0]["version"]
    spans = [{"version": label, "start": start, "end": end} for start, end in zip((0, *ends), ends, strict=False)]
    answer["meta_info"]["weight_versions"] = spans


BROKEN = (
    # of another shape
    lambda answer: answer["meta_info"].update(finish_reason={"type": "abort", "message": "x"}),
    lambda answer: answer.update(output_ids=[7, 7]),
    lambda answer: answer["meta_info"].update(output_token_logprobs=[[None, 7, None]] * 3),
    lambda answer: answer.pop("meta_info"),
    lambda answer: answer["meta_info"].update(weight_versions=[{"version": "boot", "start": 0, "end": 2}]),
    # out of bounds
    lambda answer: replace_tokens(answer, 10**9),
    lambda answer: replace_tokens(answer, -1),
    lambda answer: replace_tokens(answer, float("inf")),
    lambda answer: replace_spans(answer, -3, 3),
    lambda answer: replace_spans(answer, 3, 3),
)


def test_what_a_broken_reply_costs_is_one_more_request(pair, make) -> None:
    engine = make(pair[:1], mixed=True)
    engine.load(weights(0))
    for number, fault in enumerate(BROKEN):
        faults = [fault]

        def behave(path: str, body: dict, answer: dict, faults: list = faults) -> int:
            if path == "generate" and faults:
                faults.pop()(answer)
            return 200

        pair[0].behave = behave
        assert ask(engine).logprobs == (-1.5, -1.5, -1.5)
        assert pair[0].count("generate") == 2 * (number + 1), number


def test_tries_are_bounded_and_the_last_cause_is_told(pair, make) -> None:
    engine = make(pair[:1], max_attempts=3)
    engine.load(weights(0))
    pair[0].behave = lambda path, body, answer: 429 if path == "generate" else 200
    with pytest.raises(EngineError, match=r"no completion in 3 attempts, the last: .*429"):
        ask(engine)
    assert pair[0].count("generate") == 3


def test_a_refusal_is_not_tried_again(pair, make) -> None:
    engine = make(pair[:1])
    engine.load(weights(0))

    def behave(path: str, body: dict, answer: dict) -> int:
        answer.update(error={"message": "The input is too long"})
        return 400 if path == "generate" else 200

    pair[0].behave = behave
    with pytest.raises(EngineError, match="400: The input is too long"):
        ask(engine)
    assert pair[0].count("generate") == 1


def test_tokens_of_other_weights_are_never_accepted(pair, make) -> None:
    """The server forgets its weights without a word: noticed by the reply, mended, sampled anew."""
    engine = make(pair[:1], limits=SGLangSettings(probe_every=60.0))
    engine.load(weights(0))
    label = pair[0].version
    pair[0].version = "somebody else's"
    completion = ask(engine)
    assert (completion.weights_version, pair[0].version) == (0, label)
    assert pair[0].count("update_weights_from_disk") == 2


def test_a_label_is_known_before_its_folder_is_there(pair, make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows may sample from it before the write has returned."""
    engine, write = make(pair[:1]), WeightsFolder.write
    seen: list[tuple[str, int]] = []

    def watched(store: WeightsFolder, *given: Any) -> LabelledWeights:
        target = write(store, *given)
        seen.append((target.label, engine._version_by_label[target.label]))
        return target

    monkeypatch.setattr(WeightsFolder, "write", watched)
    engine.load(weights(4))
    assert seen == [(pair[0].version, 4)]


def test_spans_are_kept_or_sampled_anew(pair, make, tmp_path: Path) -> None:
    for mixed in (True, False):
        server = pair[int(mixed)]
        engine = make([server], mixed=mixed, folder=tmp_path / str(mixed))
        engine.load(weights(0))
        first = server.version
        engine.load(weights(1))
        calls: list[int] = []

        def behave(path: str, body: dict, answer: dict, first: str = first, calls: list[int] = calls) -> int:
            if path == "generate" and not calls:
                calls.append(1)
                old, new = {"version": first, "start": 0, "end": 2}, answer["meta_info"]["weight_versions"][0]
                answer["meta_info"]["weight_versions"] = [old, {**new, "start": 2}]
            return 200

        server.behave = behave
        completion = ask(engine)
        assert (completion.weights_version, completion.spans) == (1, ((0, 2), (1, 1)) if mixed else ())
        assert server.count("generate") == (1 if mixed else 2)


def test_the_deadline_aborts_the_request_on_the_server(pair, make) -> None:
    engine = make(pair[:1], timeout_s=0.5)
    engine.load(weights(0))
    pair[0].behave = hang_on(threading.Event(), "generate")
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"no completion within 0\.5 s"):
        ask(engine)
    assert time.monotonic() - began < patience(2)
    [rid] = [body["rid"] for body in pair[0].bodies if "input_ids" in body]
    until(lambda: {"rid": rid} in pair[0].bodies)


def test_releasing_a_session_ends_its_call_and_aborts_it(pair, make) -> None:
    engine = make(pair[:1])
    engine.load(weights(0))
    pair[0].behave = hang_on(threading.Event(), "generate")
    timer = threading.Timer(0.2, engine.release, ("a",))
    timer.start()
    with pytest.raises(EngineError, match="session 'a' was released"):
        ask(engine)
    until(lambda: pair[0].count("abort_request") == 1)


def test_a_server_that_hangs_loses_its_requests_to_another(pair, make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cojax.rollout.sglang.client._HEALTH_TIMEOUT_S", 0.3)
    engine = make(pair)
    engine.load(weights(0))
    ask(engine, "a"), ask(engine, "b")
    monkeypatch.setattr("cojax.rollout.sglang.client._QUICK_TIMEOUT_S", 0.4)
    hung = threading.Event()
    pair[0].behave = hang_on(hung, "generate", "health", "model_info")
    began = time.monotonic()
    assert ask(engine, "a").tokens == ask(engine, "b").tokens == (7, 7, 7)
    assert time.monotonic() - began < patience(5)
    hung.set()


def test_no_server_that_takes_the_weights_is_an_error_that_says_why(pair, make) -> None:
    engine = make(pair)

    def behave(path: str, body: dict, answer: dict) -> int:
        answer.update(message="no such folder")
        return 400 if path == "update_weights_from_disk" else 200

    pair[0].behave = pair[1].behave = behave
    with pytest.raises(EngineError, match=r"no SGLang server took the weights.*no such folder.*under the same path"):
        engine.load(weights(0))
    until(lambda: not pair[0].paused)  # its watch asks it again, which pauses it for a moment


def test_a_server_that_hangs_in_a_sync_does_not_hold_up_the_run(pair, make) -> None:
    engine = make(pair, limits=SGLangSettings(sync_deadline=0.5, probe_every=0.1))
    engine.load(weights(0))
    hung = threading.Event()
    pair[0].behave = hang_on(hung, "update_weights_from_disk")
    began = time.monotonic()
    engine.load(weights(1))
    assert time.monotonic() - began < patience(4)
    assert {ask(engine, f"s{number}").weights_version for number in range(4)} == {1}
    hung.set()
    until(lambda: all(server.is_up for server in engine.fleet.servers))


def test_closing_wakes_whoever_waits(pair, make) -> None:
    engine = make(pair[:1])
    engine.load(weights(0))
    pair[0].behave = hang_on(threading.Event(), "generate")
    timer = threading.Timer(0.2, engine.close)
    timer.start()
    with pytest.raises(EngineError, match="the engine was closed"):
        ask(engine)
    timer.join()
    with pytest.raises(EngineError, match="the engine was closed"):
        ask(engine)
    engine.close()


def test_mistakes_of_the_caller_never_reach_the_server(pair, make) -> None:
    """A token outside the vocabulary would end a real one."""
    engine = make(pair[:1])
    with pytest.raises(EngineError, match="no weights; call load first"):
        ask(engine)
    engine.load(weights(0))
    for prompt in ([112], [-1], []):
        with pytest.raises(ValueError, match=r"vocabulary has 0–111|prompt is empty"):
            engine.generate(prompt, Sampling(), session="a", seed=(0,))
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        ask(engine, max_tokens=0)
    assert pair[0].count("generate") == 0


def test_hundreds_of_callers_share_one_client(pair, make) -> None:
    engine = make(pair)
    engine.load(weights(0))
    done: list[Completion] = []

    def converse(number: int) -> None:
        done.extend(ask(engine, f"s{number}") for _ in range(2))
        engine.release(f"s{number}")

    threads = [threading.Thread(target=converse, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 400
    assert sum(server.count("generate") for server in pair) == 400
    assert engine.busy_seconds > 0
    until(lambda: sum(server.session_count for server in engine.fleet.servers) == 0)


@pytest.mark.parametrize("status", [200, 400])
def test_a_reply_that_nests_deeply_is_a_fault_of_the_server(status) -> None:
    async def ask(url: str) -> None:
        connections = Connections()
        try:
            await ServerClient(url, connections).generate([1, 2], Sampling(1.0, 8, (9,)), 8, 100, "r", 1)
        finally:
            await connections.aclose()

    nested = b"[" * 100_000 + b"]" * 100_000
    with (
        serving(lambda request, number: (status, {}, nested)) as server,
        pytest.raises((RequestFailed, RequestRefused)),
    ):
        asyncio.run(ask(server.url))
