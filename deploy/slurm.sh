#!/bin/bash
# A run on several hosts of NVIDIA GPUs under Slurm: the last host samples with SGLang, the others train.
#   sbatch deploy/slurm.sh
# It was never submitted to a cluster. docs/deploy.md says what it needs, costs and prints.

# Set these, and what stands below them.
# Hosts: one more than train.
#SBATCH --nodes=3
# GPUs of each host.
#SBATCH --gpus-per-node=8
# Where such hosts are.
#SBATCH --partition=gpu
# What the partition allows; submit again to go on.
#SBATCH --time=24:00:00

# One job at a time by this name: submitted several times, each goes on where the one before ended.
#SBATCH --job-name=cojax
#SBATCH --dependency=singleton
#SBATCH --exclusive
#SBATCH --mem=0
# A job that is preempted, or loses a host, begins again, and the run resumes.
#SBATCH --requeue
#SBATCH --open-mode=append

python=/shared/cojax/.venv/bin/python    # has this project and jax[cuda12]
sglang=/shared/sglang/bin/python         # has SGLang
config=experiments/bfcl.py               # the experiment; sbatch is called in the checkout
model=/shared/models/Qwen3-4B            # a model folder
workdir=/shared/runs/bfcl                # the run directory; another run needs another one
weights=/shared/weights/bfcl             # where servers find new weights
fsdp=16                                  # GPUs over which rows and parameters are split; times tensor all that train
tensor=1                                 # GPUs over which each matrix is split
rows=16                                  # rows of a micro-batch, a multiple of fsdp
checkpoint_every=2                       # steps; a preemption costs at most so many

set -euo pipefail
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
rollout=${hosts##*$'\n'}
trainers=$((SLURM_JOB_NUM_NODES - 1))
gpus=${SLURM_GPUS_PER_NODE##*:}

# It ends with this script.
JAX_PLATFORMS=cpu srun --nodes=1 --ntasks=1 --nodelist="$rollout" \
  "$python" -m experiments.serve --config="$config" --config.model.path="$model" --config.sglang.folder="$weights" \
  --config.sglang.follow=True --config.sglang.port=30000 --config.sglang.python="$sglang" \
  --config.sglang.flags="--tp $gpus" &

# JAX takes the GPU of its number on the host for each task, and finds the others by Slurm's variables. The first task
# plays the episodes, so none is bound to its share of the processors.
XLA_PYTHON_CLIENT_MEM_FRACTION=0.92 srun --nodes="$trainers" --exclude="$rollout" --ntasks=$((trainers * gpus)) \
  --ntasks-per-node="$gpus" --cpu-bind=none --kill-on-bad-exit=1 \
  "$python" -m experiments.run --config="$config" --config.model.path="$model" --config.workdir="$workdir" \
  --config.checkpoint_every="$checkpoint_every" --config.engine=sglang \
  --config.sglang.urls="http://$rollout:30000" --config.sglang.folder="$weights" --config.sglang.follow=True \
  --config.sglang.startup_deadline=3600 --config.mesh.fsdp="$fsdp" --config.mesh.tensor="$tensor" \
  --config.learner.micro_rows="$rows" --config.staleness=1 --config.distributed=true
