"""Entry point of `dataloader-svc`: runs the command and turns errors into one line and an exit code.

Imports nothing at the top that needs more than the standard library: a light client installation has no
click, and is told so.
"""

from __future__ import annotations

import os
import signal
import sys

from dataloader_svc.engine.importing import uncollected


def main(argv: list[str] | None = None) -> None:
    """Run the command line in `argv` (default: the process's) and exit with its code.

    0 fine; 1 a contract or check failed; 2 configuration or usage; 3 data; 4 state; 5 store; 6 a process of
    the job is gone; 130 interrupted.
    """
    # `kill` ends a command as Ctrl-C does: processes stopped, temporary files removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Pydantic would look for plug-ins in every package that is installed, here and in each role. "" lets it.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        with uncollected():
            from dataloader_svc.cli.app import app
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"dataloader-svc: the service's packages are not installed ({error.name} is missing): "
            "pip install 'dataloader-svc[server]'\n"
        )
        sys.exit(2)
    sys.exit(_run(app, argv))


def _run(app: object, argv: list[str] | None) -> int:
    import click

    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    assert isinstance(app, click.Group)
    try:
        code = app.main(args=argv, standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except _errors() as error:
        if debug:
            raise
        sys.stderr.write(_text(error))
        return getattr(error, "exit_code", 6)
    except (KeyboardInterrupt, click.Abort):
        sys.stderr.write("interrupted\n")
        return 130
    except BrokenPipeError:
        # The reader of our output (`| head`) has seen enough. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0


def _errors() -> tuple[type[Exception], ...]:
    """What is raised on purpose. Asked for only where something was raised: the client brings gRPC."""
    from dataloader_client.errors import DataServiceError
    from dataloader_svc.errors import DataloaderError

    return DataloaderError, DataServiceError


def _text(error: Exception) -> str:
    lines = [*str(error).splitlines(), *(f"  {note}" for note in getattr(error, "__notes__", ()))]
    return "".join(f"error: {line}\n" if number == 0 else f"{line}\n" for number, line in enumerate(lines))
