"""Private rehearsal before a committed call, at an honest price.

The policy imagines what its calls would bring, and only then commits one to the real environment.

    guard       a session that refuses every call while something is imagined
    ledger      every imagined and committed message with its tokens; what was decided and why
    gate        reads pass, writes are rehearsed first: for tools of your own
    turns       one call of a gate at a time, from threads and event loops
    journal     what a gate decided and what came of it, in a file that outlives the program
    redaction   values that only the tools may see
    endpoint    a chat model behind an OpenAI-compatible endpoint as the rehearser of a gate
    choice      what was drawn before one committed message, and what it cost
    episode     many episodes on the real environment, decided message by message
    scorers     which imagined continuation looks best
    private     `PrivateRehearsal`
    controls    the same tokens spent without a rehearsed response

The first seven load no torch. `experiments.ways` has all ways of deciding by name, `experiments.harm` what they did.
"""

from envace_lite.rehearsal.gate import Gate
from envace_lite.rehearsal.guard import ImaginedCall, imagining
from envace_lite.rehearsal.journal import GateDecision, Journal, JournalError
from envace_lite.rehearsal.ledger import Decision, Entry, Ledger

__all__ = [
    "Decision",
    "Entry",
    "Gate",
    "GateDecision",
    "ImaginedCall",
    "Journal",
    "JournalError",
    "Ledger",
    "imagining",
]
