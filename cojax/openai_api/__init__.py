"""The one client of OpenAI-compatible endpoints: of explorers, embeddings, evaluations and simulated customers."""
