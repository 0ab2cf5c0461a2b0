"""Benchmarks of speed and memory: python -m experiments.bench [SUITE ...] [--json] [settings].

    step      one step of GRPO end to end: generation, reference, update, weights to the engine
    update    the learner's update alone, on full packed rows; with --depths, its cost for each number of layers; with
              --prompt, --answer and --segments each row holds that many answers to one prompt
    decode    the local engine's decode, against the memory bandwidth of this machine
    prefill   the local engine's prefill, against the matrix products of this machine
    load      cojax.load of a model folder, against reading the same bytes
    export    Policy.save of a model folder, against writing the same bytes
    signals   the three detectors
    desk      the embedded environment
    engine    the local engine under many short conversations
    sync      new weights from arrays to an SGLang server that serves them, against copying the same bytes
    conversations  64 episodes at once on an SGLang server: requests a second, prefix cache
    worlds    episodes of AppWorld at once
    scale     what the host does of a step beside up to 10⁶ earlier episodes and tasks, and how that grows
    attackers  what attackers of `cojax audit` refuse of the desk's drafts, and what they cost

The last five run only when named. `sync` and `conversations` launch a server; `make sglang` installs one for the CPU,
--python names another. `scale` takes about 1 KB of disk an episode, in $TMPDIR, and needs 4 KB free for each.
Every figure is the median of repetitions after a warm-up, with the smallest and the largest. Machines are shared and
noisy: compare only figures of one run.
"""
