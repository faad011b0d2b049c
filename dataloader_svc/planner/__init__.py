"""The role that decides what samples make up a step and where they go, from metadata. Start at `core.py`."""
