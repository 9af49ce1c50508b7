"""The domain of the notebook `08_your_own_domain`, which writes it in a cell; from here its base is made."""

from __future__ import annotations

from random import Random

from envace_lite.world import Domain


class Workshop:
    """Bicycles that are washed, and rented out by the day."""

    def __init__(self, bikes: dict, riders: dict):
        self.bikes, self.riders = bikes, riders

    def look(self, bike: str) -> str:
        """Tell the status of a bicycle.

        Args:
            bike: which one
        """
        return self.bikes[bike]

    def wash(self, bike: str) -> dict:
        """Wash a dirty bicycle.

        Args:
            bike: which one
        """
        if self.bikes[bike] != "dirty":
            raise ValueError(f"it is {self.bikes[bike]}")
        self.bikes[bike] = "clean"
        return {"bike": bike, "status": "clean"}

    def rent(self, bike: str, rider: str) -> dict:
        """Rent a clean bicycle out for 2 coins.

        Args:
            bike: which one
            rider: who takes it and pays
        """
        if self.bikes[bike] != "clean":
            raise ValueError(f"it is {self.bikes[bike]}")
        if self.riders[rider]["coins"] < 2:
            raise ValueError("too few coins")
        self.bikes[bike] = "out"
        self.riders[rider]["coins"] -= 2
        self.riders[rider]["bike"] = bike
        return {"coins": self.riders[rider]["coins"]}

    def take_back(self, rider: str) -> str:
        """Take a rider's bicycle back, which is dirty then.

        Args:
            rider: who brings it
        """
        bike = self.riders[rider].pop("bike")
        self.bikes[bike] = "dirty"
        return bike


BIKES, RIDERS = ("red", "blue", "green", "white"), ("Ana", "Bob", "Cem")


def morning(rng: Random) -> dict:
    """Four bicycles, one of which is out, and three riders."""
    bikes = {bike: rng.choice(["clean", "dirty", "dirty", "broken"]) for bike in BIKES}
    riders: dict = {rider: {"coins": rng.randint(0, 5)} for rider in RIDERS}
    return {"bikes": bikes, "riders": riders}


def draw(rng: Random) -> dict:
    """A morning, and what is asked: the plan, and what is to be said at its end."""
    state = morning(rng)
    bikes, riders = state["bikes"], state["riders"]
    one, other = rng.sample(BIKES, 2)
    rider, renter = rng.choice(RIDERS), rng.choice(RIDERS)
    bikes[other], riders[renter]["bike"] = "out", other
    kind = rng.choice(["look", "wash", "rent", "both", "return"])
    ready = bikes[one] == ("clean" if kind == "rent" else "dirty")
    wash, rent = ("wash", {"bike": one}), ("rent", {"bike": one, "rider": rider})
    if kind == "look":
        ask, calls, answer = f"How is {one}?", [("look", {"bike": one})], bikes[one]
    elif kind == "wash":
        ask, calls, answer = f"Wash {one}.", [wash], "done" if ready else "not possible"
    elif kind == "return":
        rider = rng.choice([rider, renter])
        calls = [("take_back", {"rider": rider})]
        calls += [("wash", {"bike": other})] if rider == renter else []
        ask = f"{rider} brings a bike. Wash it."
        answer = f"{other} done" if rider == renter else "not possible"
    else:
        calls = [wash, *[rent][:ready]] if kind == "both" else [rent]
        ask = f"{'Wash and rent' if kind == 'both' else 'Rent'} {one} to {rider}."
        paid = ready and riders[rider]["coins"] >= 2
        answer = f"{riders[rider]['coins'] - 2} left" if paid else "not possible"
    return {"state": state, "ask": ask, "calls": calls, "answer": answer}


workshop = Domain.from_tools("workshop", Workshop, tasks=draw, reads={"look"})
