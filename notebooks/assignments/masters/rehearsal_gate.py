# %% [markdown]
# # Assignment: a rehearsal gate
#
# A policy that can rehearse should do so before a call reaches the real environment and cannot
# be undone. Write the gate. About 45 minutes.
#
# `rehearse(call)` returns the response that the policy believes in, a sentence with the verdict
# `ok` or `error`. It costs tokens, so there is a *budget*: the number of rehearsals that one
# decision may use.

# %% given world
REHEARSED = {
    "pack_order o1": "o1:sent needs:paid error status",
    "refund_order o1": "o1:sent needs:returned error status",
    "recall_order o1": "o1:sent needs:sent courier:busy ok o1:returned courier:free",
    "deliver_order o1": "o1:sent needs:sent courier:busy ok o1:delivered courier:free",
}
rehearsals = []


def rehearse(call):
    """What the policy believes; each rehearsal is noted."""
    rehearsals.append(call)
    return REHEARSED[call]


def is_write(call):
    """Whether a call can change something."""
    return not call.startswith("get_")


# %% [markdown]
# ## The gate
#
# `gate(candidates, rehearse, budget)` returns the call to commit, or `None`. It goes through
# the candidates in order:
#
# 1. A call that cannot change anything (`is_write` is false) is committed at once, without a
#    rehearsal.
# 2. With a budget of 0 the first candidate is committed unseen: there is no private rehearsal.
# 3. Otherwise a call is rehearsed. If its verdict is `ok`, it is committed; if not, the next
#    candidate is looked at.
# 4. When the budget is used up, or there is no candidate left, nothing is committed: `None`. A
#    refused call never is.


# %% solution gate
def gate(candidates, rehearse, budget):
    """The call to commit, or None."""
    ### BEGIN SOLUTION
    left = budget
    for call in candidates:
        if not is_write(call) or budget == 0:
            return call
        if left == 0:
            return None
        left -= 1
        if "ok" in rehearse(call).split():
            return call
    return None
    ### END SOLUTION


# %% test gate-first 2 the first call that is rehearsed as a success is committed
rehearsals.clear()
chosen = gate(list(REHEARSED), rehearse, 4)
assert chosen is not None, (
    "the third candidate is rehearsed as a success and has to be committed"
)
assert chosen == "recall_order o1", (
    f"the first success is recall_order o1, not {chosen}"
)
### BEGIN HIDDEN TESTS
assert rehearsals == list(REHEARSED)[:3], (
    "stop at the first success: later rehearsals are wasted"
)
assert gate([], rehearse, 3) is None, "without a candidate there is nothing to commit"
look = {"a o1": "o1:ok error status", "b o1": "o1:broken ok"}
assert gate(list(look), look.get, 2) == "b o1", (
    "the verdict is a word of its own: o1:ok is a record"
)
### END HIDDEN TESTS

# %% test gate-budget 2 no more rehearsals than the budget, and no refused call
rehearsals.clear()
assert gate(list(REHEARSED), rehearse, 2) is None, (
    "both calls that the budget allows to rehearse are refused, so nothing is committed"
)
assert len(rehearsals) == 2, (
    f"a budget of 2 allows two rehearsals; you made {len(rehearsals)}"
)
### BEGIN HIDDEN TESTS
rehearsals.clear()
gate(list(REHEARSED)[:1] * 5, rehearse, 3)
assert len(rehearsals) == 3, "the budget counts rehearsals, also of the same call"
assert gate(["pack_order o1"], rehearse, 9) is None, "a refused call is never committed"
### END HIDDEN TESTS

# %% test gate-zero 1 a budget of 0 is no private rehearsal
rehearsals.clear()
assert gate(["pack_order o1", "recall_order o1"], rehearse, 0) == "pack_order o1", (
    "with a budget of 0 the first candidate is committed unseen"
)
assert rehearsals == [], "with a budget of 0 nothing is rehearsed"

# %% test gate-reads 2 a call that changes nothing needs no rehearsal
rehearsals.clear()
assert gate(["get_order o1"], rehearse, 2) == "get_order o1", (
    "a read is committed at once"
)
assert rehearsals == [], "a read is not rehearsed"
### BEGIN HIDDEN TESTS
assert gate(["pack_order o1", "get_order o1"], rehearse, 2) == "get_order o1", (
    "a read can also come after a refused call"
)
### END HIDDEN TESTS

# %% [markdown]
# ## The ledger
#
# `commit(candidates, rehearse, execute, budget, ledger)` asks the gate and carries the chosen
# call out: `execute(call)` is the real environment. It appends `(call, real response)` to the
# list `ledger`, and returns the real response, or `None` if nothing was committed. Nothing
# reaches the environment before the gate has decided.


# %% solution ledger
def commit(candidates, rehearse, execute, budget, ledger):
    """The real response to the committed call, or None."""
    ### BEGIN SOLUTION
    call = gate(candidates, rehearse, budget)
    if call is None:
        return None
    response = execute(call)
    ledger.append((call, response))
    return response
    ### END SOLUTION


# %% test gate-ledger 3 one real call at most, and the ledger holds what really happened
calls, ledger = [], []


def execute(call):
    calls.append(call)
    return "o1:sent needs:sent courier:free error busy"


real = commit(list(REHEARSED), rehearse, execute, 4, ledger)
assert calls == ["recall_order o1"], (
    f"one call reaches the environment, recall_order o1; not {calls}"
)
assert ledger == [("recall_order o1", "o1:sent needs:sent courier:free error busy")], (
    "the ledger holds pairs of the committed call and its REAL response"
)
assert real == "o1:sent needs:sent courier:free error busy", (
    "commit returns the real response"
)
### BEGIN HIDDEN TESTS
assert commit(list(REHEARSED)[:2], rehearse, execute, 2, ledger) is None, (
    "where the gate commits nothing, commit returns None"
)
assert len(calls) == len(ledger) == 1, (
    "where the gate commits nothing, nothing is carried out"
)
### END HIDDEN TESTS

# %% demo gate-demo
from envace_lite import get_domain, shipped_tasks
from envace_lite.world.tools import parse_calls

task = next(t for t in shipped_tasks(["orders"], "test") if "choose" in t.tags)
words = (
    task.messages[1]["content"]
    .removeprefix("choose ")
    .split(" report")[0]
    .split(" keep")[0]
)
session, book = get_domain("orders").reset(task), []


def really(text):
    return session.call(parse_calls(text, task.tools)[0]).text


print(task.messages[0]["content"], "|", words)
print("without a rehearsal:", commit(words.split(" or "), rehearse, really, 0, book))
