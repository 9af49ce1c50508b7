# %% [markdown]
# # Assignment: a metric that catches an optimist
#
# A rehearsed world may be right nine times of ten and still never say no. About 40 minutes.
# (The base of the course tells each tool wrongly in another way; the last cell looks at two.)
#
# A response is a sentence: the records that were looked at, then the verdict (`ok` or `error
# RULE`), then what changed. Each record is one word with a colon in it. Below, a *pair* is
# `(real, rehearsed)`: what the environment answered, and what the policy wrote.

# %% given pairs
PAIRS = [
    ("o1:paid needs:paid ok o1:packed", "o1:paid needs:paid ok o1:packed"),
    ("o2:pending needs:pending ok o2:paid", "o2:pending needs:pending ok o2:paid"),
    ("o3:paid ok", "o3:paid ok"),
    ("o4:sent needs:paid error status", "o4:paid needs:paid ok o4:packed"),
    ("o9:unknown error unknown", "o9:unknown error unknown"),
]


def exact(pairs):
    """Share of the pairs whose rehearsed response is the real one."""
    return sum(real == rehearsed for real, rehearsed in pairs) / len(pairs)


print("exact:", exact(PAIRS))

# %% [markdown]
# ## The verdict
#
# `verdict(response)` returns `"ok"`, `"error"`, or `None` if the response has no verdict at
# all. The verdict is a *word* of its own. `error:3` is a record, and so is `o1:ok`.


# %% solution verdict
def verdict(response):
    """`"ok"`, `"error"` or None."""
    ### BEGIN SOLUTION
    return next((word for word in response.split() if word in ("ok", "error")), None)
    ### END SOLUTION


# %% test recall-verdict 2 the verdict is a word of its own
assert verdict("o1:paid needs:paid ok o1:packed") == "ok", "this response says ok"
assert verdict("o4:sent needs:paid error status") == "error", "this response says error"
assert verdict("o1:paid o2:sent") is None, "without a verdict, return None"
### BEGIN HIDDEN TESTS
assert verdict("error:3 ok error:4") == "ok", (
    "look for a whole word: a record may be called error"
)
assert verdict("o1:ok error status") == "error", (
    "look for a whole word: a record may hold ok"
)
assert verdict("") is None, "an empty response has no verdict"
assert verdict("broken token") is None, (
    "look for a whole word: token holds ok, and is none"
)
### END HIDDEN TESTS

# %% [markdown]
# ## Error recall and optimism
#
# Both look at the pairs whose *real* response is an error, and at no others. *Error recall* is
# the share of them that is rehearsed as an error, *optimism* the share that is rehearsed as a
# success. A rehearsed response without a verdict is neither. Where there is no real error, both
# are `None`: nothing was measured.


# %% solution recall
def error_recall(pairs):
    """Share of the real errors that are rehearsed as an error."""
    ### BEGIN SOLUTION
    said = [verdict(rehearsed) for real, rehearsed in pairs if verdict(real) == "error"]
    return said.count("error") / len(said) if said else None
    ### END SOLUTION


def optimism(pairs):
    """Share of the real errors that are rehearsed as a success."""
    ### BEGIN SOLUTION
    said = [verdict(rehearsed) for real, rehearsed in pairs if verdict(real) == "error"]
    return said.count("ok") / len(said) if said else None
    ### END SOLUTION


# %% test recall-errors 3 error recall counts real errors only
assert error_recall(PAIRS) == 0.5, "one of the two real errors is rehearsed as an error"
assert error_recall(PAIRS[:3]) is None, (
    "without a real error there is nothing to measure: None"
)
### BEGIN HIDDEN TESTS
nervous = [("o1:a ok", "o1:a error status")] * 3 + [
    ("o1:a error status", "o1:a error status")
]
assert error_recall(nervous) == 1.0, (
    "divide by the real errors, not by the rehearsed ones"
)
assert error_recall([("o1:a error status", "o1:b error unknown")]) == 1.0, (
    "the verdict counts, not every word"
)
### END HIDDEN TESTS

# %% test recall-optimism 2 a response without a verdict is neither an error nor a success
assert optimism(PAIRS) == 0.5, "one of the two real errors is rehearsed as a success"
assert optimism(PAIRS[:3]) is None, (
    "without a real error there is nothing to measure: None"
)
### BEGIN HIDDEN TESTS
mute = [("o1:a error status", "o1:a")]
assert (error_recall(mute), optimism(mute)) == (0.0, 0.0), (
    "a response without a verdict counts neither as an error nor as a success"
)
### END HIDDEN TESTS

# %% test recall-optimist 2 the optimist is caught, although nine of ten responses are exact
optimist = [("o1:a ok", "o1:a ok")] * 9 + [("o1:a error status", "o1:a ok")]
assert exact(optimist) == 0.9
assert error_recall(optimist) == 0.0, "the optimist never says no"
assert optimism(optimist) == 1.0, "the optimist tells each error as a success"
### BEGIN HIDDEN TESTS
honest = [("o1:a ok", "o1:a ok")] * 9 + [("o1:a error status", "o1:a error status")]
assert (error_recall(honest), optimism(honest)) == (1.0, 0.0), (
    "an honest world is no optimist"
)
### END HIDDEN TESTS

# %% demo recall-demo
from envace_lite import load_policy, paths, probe, shipped_tasks

frame = probe(load_policy(paths.BASE), shipped_tasks(["orders"], "test", 60))
for tool in ("refund_order", "return_order"):
    mine = frame[frame.call.str.startswith(tool)]
    base = list(zip(mine.real, mine.rehearsed))
    print(f"{tool}: exact {exact(base):.1f}, error recall {error_recall(base):.1f}")
