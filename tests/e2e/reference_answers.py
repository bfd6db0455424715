"""What of the reference implementation's greedy tokens must be ours: tests/data/oracle/README.md."""

# If the two best logits are closer than this, rounding may choose either.
CLEAR_GAP = 0.5


def clear_stretch(prompts: list[dict]) -> tuple[list[int], list[int]]:
    """The most tokens in a row of one of these prompts whose choice is clear: the ids before them,
    and the tokens."""
    best = ([], [])
    for prompt in prompts:
        begin = 0
        for end, gap in enumerate([*prompt["gap"], 0]):
            if gap > CLEAR_GAP:
                continue
            if end - begin > len(best[1]):
                best = (prompt["ids"] + prompt["greedy"][:begin], prompt["greedy"][begin:end])
            begin = end + 1
    return best
