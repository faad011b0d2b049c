"""The role that reads sources: blocks in, probe columns and decoded samples out. Start at `service.py`."""
