"""The loop put together from its parts, without a configuration: python examples/compose.py runs/composed"""

import sys
from pathlib import Path

import environments
from cojax import signals
from cojax.coevolve import coevolve
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.learner.learner import Learner
from cojax.learner.optimizer import adamw
from cojax.loop import Loop, State
from cojax.loop.records import save
from cojax.metrics import Metrics, Stopwatch
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import initialize
from cojax.pool import TaskPool
from cojax.rollout.chat import Chat, no_document
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Sampling
from cojax.rollout.local import LocalEngine
from cojax.rollout.vocabulary import word_tokenizer
from cojax.storage.run_directory import RunDirectory
from cojax.synthesis import EVOLUTIONS, initial_tasks
from cojax.validation import Exclusions, Validation


def main(folder: Path, steps: int = 4) -> State:
    world = environments.load("desk")
    chat = Chat(word_tokenizer(*world.lexicon(), world.tools()), no_document)
    model = ModelConfig(-(-len(chat.tokenizer) // 16) * 16, 32, 64, 1, num_attention_heads=2, num_key_value_heads=1)
    learner = Learner(model, adamw(1e-3), loss_settings={"kl_coefficient": 0.0})
    explorer = ScriptedExplorer(neighbours=world.neighbours)
    validate = Validation(world, Exclusions.of(world.tasks("eval", 100)))
    kinds = {name: kind() for name, kind in signals.SIGNALS.items()}
    loop = Loop(
        world, LocalEngine(model, slots=8, max_length=256), chat, learner, explorer, validate, kinds, kinds=kinds,
        evolve=EVOLUTIONS["feedback"], popularity=None, sampling=Sampling(max_tokens=24, stop_tokens=chat.stops),
        limits=Limits(concurrency=8), clock=Stopwatch(), seed=0, steps=steps, batch_size=4, group_size=4,
        evolve_every=2, fresh_fraction=0.5, contexts=4, budget=4, per_context=1, checkpoint_every=2,
    )  # fmt: skip

    directory = RunDirectory(folder)
    directory.claim({"steps": steps}, {})
    directory.begin()
    tasks = initial_tasks(world, explorer, validate, 8, seed=(0, "initial"), weights=None).tasks
    directory.add_tasks(tasks)
    state = State(0, learner.init(initialize(model, seed=0)), TaskPool.of(tasks), signals.init(kinds))
    save(loop, state, directory)
    metrics = Metrics(folder, log=directory.metrics)
    state = coevolve(loop, state, directory, observe=metrics.write)
    loop.engine.close()
    return state


if __name__ == "__main__":
    main(Path(sys.argv[1]))
