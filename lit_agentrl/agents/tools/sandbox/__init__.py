"""The one sandbox for code that a model wrote; what it promises and how is in docs/sandbox.md."""
