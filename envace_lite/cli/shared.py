"""The app that all commands of `envace` belong to."""

from envace_lite.experiments.shell import new_app

app = new_app(
    "World rehearsal in small: one policy acts, rehearses what the environment would answer, and learns both "
    "from task success alone."
)
