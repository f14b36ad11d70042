"""Tools that an agent may call, and how they are described to a model."""
