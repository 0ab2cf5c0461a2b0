"""The command for one evaluation: success by split, avg@k, pass@k with 95 % intervals, and a benchmark's own measures.

    python -m experiments.evaluate --config=experiments/desk.py --checkpoint=runs/desk   # the newest checkpoint
    python -m experiments.evaluate --config=experiments/desk.py --checkpoint=runs/desk/checkpoints/80 --splits=dev,eval
    python -m experiments.evaluate --config=experiments/desk.py --model=models/Qwen3-4B --splits=all
    python -m experiments.evaluate --config=experiments/desk.py --endpoint=http://HOST:8000/v1 --endpoint_model=NAME \\
        --samples=4 --config.evaluation.temperature=0.7

The configuration names the environment, the number of tasks of each split (evaluation.tasks, .dev_tasks,
.challenge_tasks) and how they are played. The policy of a checkpoint is that of its run. Episodes are stored as they
end. The same command continues where it was stopped, and plays invalid episodes again. The API key of an endpoint is
read from OPENAI_API_KEY.
"""

import functools
from collections.abc import Sequence

from absl import flags

from cojax.settings import flags as settings

_CHECKPOINT_FLAG = flags.DEFINE_string("checkpoint", None, "A run's workdir, or WORKDIR/checkpoints/STEP.")
_MODEL_FLAG = flags.DEFINE_string("model", None, "A model folder in HF format, tokenizer included.")
_ENDPOINT_FLAG = flags.DEFINE_string("endpoint", None, "An OpenAI-compatible endpoint, such as http://HOST:8000/v1.")
_ENDPOINT_MODEL_FLAG = flags.DEFINE_string("endpoint_model", None, "The model to ask the endpoint for.")
_SPLITS_FLAG = flags.DEFINE_list("splits", None, "Splits, or 'all' for evaluation; by default evaluation.split.")
_SAMPLES_FLAG = flags.DEFINE_integer("samples", 1, "Episodes of each task.", lower_bound=1)
_OUT_FLAG = flags.DEFINE_string("out", None, "The evaluation's folder; by default one named after what is evaluated.")


def main(argv: Sequence[str]) -> None:
    from cojax.evaluation.evaluate import run  # now, so that a wrong flag need not wait for JAX

    policy_flags = (_CHECKPOINT_FLAG.value, _MODEL_FLAG.value, _ENDPOINT_FLAG.value, _ENDPOINT_MODEL_FLAG.value)
    run(policy_flags, _SPLITS_FLAG.value, _SAMPLES_FLAG.value, _OUT_FLAG.value)


start = functools.partial(settings.start_command, main, __doc__)
