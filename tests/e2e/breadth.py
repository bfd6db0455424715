"""How much one run does: all combinations of settings, or only enough that every two meet.

tests/breadth.h does the same for C++. scripts/test sets SHOAL_TEST_DAY, and SHOAL_TEST_BREADTH to
full for --long and to pairs without --all. CTest sets SHOAL_TEST_SANITIZED in a build with a
sanitizer, where pairs are enough, too.
"""
import itertools
import os

FULL = os.environ.get("SHOAL_TEST_BREADTH") == "full"
SANITIZED = "SHOAL_TEST_SANITIZED" in os.environ
NARROW = not FULL and (SANITIZED or os.environ.get("SHOAL_TEST_BREADTH") == "pairs")
# scripts/test --all runs the tests under an emulator on every fourth day.
DAYS_BETWEEN_RUNS = 4 if os.environ.get("SHOAL_TEST_EMULATOR") else 1


def day() -> int:
    """The seed of the day, which the next run's follows. Without scripts/test --all it is the same
    in every run."""
    return int(os.environ.get("SHOAL_TEST_DAY", "0")) // DAYS_BETWEEN_RUNS


def pairs(dimensions: list[list]) -> list[tuple]:
    """Combinations of one value per dimension, in which every two values of different dimensions
    meet.

    A fault that needs two settings shows in one of them. The choice is always the same: of all
    combinations, it repeatedly takes the first of those that bring the most pairs together for the
    first time.
    """
    def met(combination: tuple) -> set:
        return set(itertools.combinations(enumerate(combination), 2))
    everything = list(itertools.product(*dimensions))
    missing = set().union(*map(met, everything))
    chosen = []
    while missing:
        best = max(everything, key=lambda combination: len(met(combination) & missing))
        chosen.append(best)
        missing -= met(best)
    return chosen
