"""GGUF files of the Llama family as model folders in Hugging Face format."""
