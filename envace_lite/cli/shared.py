"""The app that all commands of `envace` belong to."""

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="World rehearsal in small: one policy acts, rehearses what the environment would answer, and learns both "
    "from task success alone.",
)
