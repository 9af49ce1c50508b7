"""On which parts of its responses a task rests: each part is told otherwise, and a careful agent plays on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from envace_lite.world.request import Script, effective_writes, play
from envace_lite.world.tools import FACTS, RULES, ToolResponse, Value, World


class _Misled(World):
    """A world whose response number `place` tells one part wrongly; what it tells stays told."""

    def __init__(self, records: Mapping[str, Value], place: int, slot: str, value: Value):
        super().__init__(records)
        self.place, self.slot, self.value = place, slot, value

    def run(self, function: Callable[..., None], arguments: Mapping[str, Value]) -> ToolResponse:
        before = dict(self.records)
        response = super().run(function, arguments)
        self.place -= 1
        if self.place != -1:
            return response
        what, _, key = self.slot.partition(" ")
        if what == "rule":
            return ToolResponse(response.seen, str(self.value), response.changed)
        if what == "verdict":
            self.records = before
            return ToolResponse(response.seen, None if response.error else str(self.value), {})
        self.records |= {key: self.value} if key in self.records else {}
        if what == "seen":
            return ToolResponse({**response.seen, key: self.value}, response.error, response.changed)
        return ToolResponse(response.seen, response.error, {**response.changed, key: self.value})


def bearing(script: Script) -> list[list[str]]:
    """For each call of the plan, the parts of its response on which a decision rests.

    A decision rests on a part if a careful agent who is told something else there makes other calls afterwards, gives
    another answer, or has another list of writes that took effect. What a record that the conversation shows holds
    before a call is no such part: the agent need not be told.
    """

    def course(world: World) -> tuple[object, ...]:
        episode = play(replace(script, plans={0: script.plans.get(0, [[]])[:1]}), world)
        calls = [call.text for call, _ in episode.exchanges()]
        return calls, [answer for _, answer in episode.turns], effective_writes(script, episode)

    true = course(World(script.state))
    rests = []
    for place, (_, response) in enumerate(play(script, World(script.state)).exchanges()):
        rules = [rule for rule in RULES if rule != response.error]
        lies: dict[str, Sequence[Value]] = {"verdict": rules}
        if response.error:
            lies["rule"] = rules
        for what in ("seen", "changed"):
            for key, value in getattr(response, what).items():
                if what == "changed" or key in FACTS or key in script.domain.hidden:
                    lies[f"{what} {key}"] = [v for v in script.domain.values.get(key, ()) if v != value]
        rests.append(
            [
                slot
                for slot, values in lies.items()
                if any(course(_Misled(script.state, place, slot, value)) != true for value in values)
            ]
        )
    return rests
