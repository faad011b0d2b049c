"""The role that decides which samples make up a step, and where they go. Sees metadata only. Start at `core.py`."""
