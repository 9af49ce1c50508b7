# %% [markdown]
# # Assignment: the rollout loop
#
# Write the loop in which a policy acts and is answered: by itself, or by the real environment.
# About 40 minutes.
#
# A conversation is a list of sentences. `act(messages)` returns the next call, or `say ...` for
# the final answer. `respond(messages)` returns what the latest call brings. Both read
# everything that was said before. Each sentence has a role id: 0 given, 1 act, 2 rehearse.

# %% given toy-policy
PROMPT = ["orders o1:paid o2:sent", "pack_order o1 report o1"]


def act(messages):
    """A toy policy: it makes one call, and reports what it has read."""
    if messages[-1].startswith("o1:paid needs:paid"):
        return "say " + messages[-1].split(":")[-1]
    return "pack_order o1"


def rehearse(messages):
    """Its rehearse role."""
    return "o1:paid needs:paid ok o1:packed"


# %% [markdown]
# ## The task
#
# `rollout(prompt, act, respond, response_role, horizon)` returns two lists of the same length:
# the messages, with those of the prompt first, and their role ids.
#
# - The act role's sentences have role id 1. Responses have the id `response_role`: 2 if the
#   policy rehearses, 0 if the environment answers.
# - A sentence that begins with `say` ends the rollout.
# - So does the response to call number `horizon`: then there is no answer.
# - The list `prompt` stays as it was.


# %% solution rollout
def rollout(prompt, act, respond, response_role=2, horizon=10):
    """Messages and role ids of one rollout."""
    ### BEGIN SOLUTION
    messages, roles = list(prompt), [0] * len(prompt)
    for _ in range(horizon):
        messages.append(act(messages))
        roles.append(1)
        if messages[-1].startswith("say"):
            break
        messages.append(respond(messages))
        roles.append(response_role)
    return messages, roles
    ### END SOLUTION


# %% test loop-one-call 2 one call, its response and the answer, in order
result = rollout(PROMPT, act, rehearse)
assert result is not None, (
    "rollout returns nothing; return the messages and the role ids"
)
assert len(result) == 2, (
    "rollout has to return two lists: the messages and the role ids"
)
said = [*PROMPT, "pack_order o1", "o1:paid needs:paid ok o1:packed", "say packed"]
assert list(result[0]) == said, f"the messages should be {said}, not {result[0]}"
### BEGIN HIDDEN TESTS
silent = rollout(["a"], lambda m: "say nothing", rehearse)
assert list(silent[0]) == ["a", "say nothing"], (
    "a rollout can end with an answer before any call"
)
### END HIDDEN TESTS


# %% test loop-reads 2 act and respond read everything that was said before
def curious(messages):
    assert messages[: len(PROMPT)] == PROMPT, (
        "act has to read the prompt and all that follows it"
    )
    return f"say {len(messages)}" if len(messages) >= 6 else "call"


def counting(messages):
    assert messages[-1] == "call", (
        "respond has to read the call that it answers, as the last message"
    )
    return f"ok {len(messages)}"


read = rollout(PROMPT, curious, counting)[0]
assert read[-1] == "say 6", (
    "act has to read the responses too: pass it all messages so far"
)
### BEGIN HIDDEN TESTS
assert read[3] == "ok 3" and read[5] == "ok 5", (
    "respond has to read all messages so far"
)
### END HIDDEN TESTS

# %% test loop-roles 2 role ids under both responders
assert list(rollout(PROMPT, act, rehearse)[1]) == [0, 0, 1, 2, 1], (
    "role ids of a rehearsed rollout: 0 for the prompt, 1 for act, 2 for a response"
)
given = rollout(PROMPT, act, rehearse, response_role=0)[1]
assert list(given) == [0, 0, 1, 0, 1], (
    "a response of the environment has the role id `response_role`"
)
### BEGIN HIDDEN TESTS
for role in (0, 2):
    texts, ids = rollout(["x"], act, rehearse, role)
    assert len(texts) == len(ids), "there has to be one role id for each message"
    assert ids.count(role) == 1 + (role == 0), (
        "only responses have the role id `response_role`"
    )
### END HIDDEN TESTS


# %% test loop-horizon 2 a rollout that never answers ends at the horizon
def endless(messages):
    assert len(messages) < 100, "the horizon does not end the loop"
    return "look"


talk = rollout(["x"], endless, lambda m: "ok", horizon=3)[0]
assert talk.count("look") == 3, (
    f"with horizon 3 there are three calls, not {talk.count('look')}"
)
### BEGIN HIDDEN TESTS
assert talk[-1] == "ok", "the last call within the horizon is answered"
assert len(rollout(["x"], endless, lambda m: "ok", horizon=5)[0]) == 11, (
    "the horizon has to be used"
)
### END HIDDEN TESTS

# %% test loop-prompt 1 the prompt is left as it was, so that many rollouts can start from it
before = list(PROMPT)
first, second = rollout(PROMPT, act, rehearse), rollout(PROMPT, act, rehearse)
assert before == PROMPT, "rollout changes its argument `prompt`; copy it first"
assert first == second, "a second rollout of the same prompt differs from the first"

# %% demo loop-demo
from envace_lite import load_policy, paths, shipped_tasks
from envace_lite.model.decoding import complete

base, task = load_policy(paths.BASE), shipped_tasks(["orders"], "test", 1)[0]
chat = base.chat
start = chat.decode(chat.render(task.messages, task.tools)).split(" <end> ")


def written(messages, header):
    text = (
        " <end> ".join(m.removesuffix(" <end>") for m in messages) + f" <end> {header}"
    )
    return header + " " + complete(base, [chat.encode(text)])[0][0]


def act_role(messages):
    return written(messages, "<assistant>").replace("<assistant> say", "say")


def rehearse_role(messages):
    return written(messages, f"<tool> {messages[-1].split()[1]}")


print(
    "the base policy in your loop:",
    rollout(start, act_role, rehearse_role)[0][len(start) :],
)
