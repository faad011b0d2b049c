"""The command line: one file a command, each with a `command` object; `app.py` gathers them."""
