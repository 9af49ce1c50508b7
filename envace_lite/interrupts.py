"""What the command line does about an interrupt: it ends with one line, from the first import on.

The package imports this module before all others, since those of torch and transformers take seconds. A notebook, or
another program that uses the library, keeps its own way.
"""

import signal
import sys
from pathlib import Path
from typing import Any


def interrupted(*_: Any) -> None:
    """End with one line. A second interrupt ends the process at once; a checkpoint is whole at every moment."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit("envace: interrupted; the same command continues from the last checkpoint")


def done() -> None:
    """From here on an interrupt ends the process without a word: the interpreter is being closed, the work is done."""
    if signal.getsignal(signal.SIGINT) is interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


# `-m` stands there while `python -m envace_lite.cli` looks for its module.
if Path(sys.argv[0]).stem in ("envace", "-m"):
    signal.signal(signal.SIGINT, interrupted)
