"""The one client of OpenAI-compatible endpoints: explorers, embeddings and evaluations send their requests by it."""
