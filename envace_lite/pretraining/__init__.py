"""How the base is made: traces in which right and wrong occur side by side, and their imitation."""
