"""Lessons on lists of names: what can be written in any order at once, and what cannot (ParallelBench's operations).

A copy, a replacement or a removal fixes every place by the question; a random order fixes none until others are known.
"""

from names import BOYS, GIRLS

NAMES = (*GIRLS, *BOYS)
MARK = "\n\nList:\n\n"


def written(names):
    return ", ".join(names)


def copy(names, rng):
    return "Copy the list.", names


def reverse(names, rng):
    return "Reverse the list.", names[::-1]


def ordered(names, rng):
    return "Sort the list.", sorted(names)


def shuffled(names, rng):
    return "Shuffle the list.", rng.sample(names, len(names))


def removed(names, rng):
    gone = rng.choice(names)
    return f"Take {gone} out of the list.", [name for name in names if name != gone]


def replaced(names, rng):
    old, new = rng.choice(names), rng.choice([name for name in NAMES if name not in names])
    return f"Write {new} instead of {old} in the list.", [new if name == old else name for name in names]


def inserted(names, rng):
    new, at = rng.choice([name for name in NAMES if name not in names]), rng.randrange(len(names))
    return f"Put {new} before {names[at]} in the list.", [*names[:at], new, *names[at:]]


def anywhere(names, rng):
    """One of them at random becomes another: that there is one is known, where is not."""
    at, new = rng.randrange(len(names)), rng.choice([name for name in NAMES if name not in names])
    return f"Write {new} for any name of the list.", [new if i == at else name for i, name in enumerate(names)]


OPERATIONS = {
    "copy": copy, "reverse": reverse, "sort": ordered, "shuffle": shuffled, "remove": removed, "replace": replaced,
    "insert": inserted, "replace_any": anywhere,
}  # fmt: skip


def lesson(rng, kind=None):
    """-> a prompt and its answer, as `prompts.encoded` takes them."""
    kind = kind or rng.choice(tuple(OPERATIONS))
    names = rng.sample(NAMES, rng.randint(3, 6))
    order, answer = OPERATIONS[kind](names, rng)
    return f"{order}\n\n{written(names)}{MARK}", written(answer)


def parts(rng):
    """Several lists, each answered by itself, then all of them in one (NAP's independent parts and a summary)."""
    kind, lists = rng.choice(("copy", "reverse", "sort")), [rng.sample(NAMES, 3) for _ in range(rng.randint(2, 3))]
    order, answers = "", []
    for names in lists:
        order, answer = OPERATIONS[kind](names, rng)
        answers.append(answer)
    given = "\n".join(written(names) for names in lists)
    told = "\n".join(written(names) for names in answers)
    whole = written([name for names in answers for name in names])
    return f"{order[:-1]}s, one by one.\n\n{given}{MARK}", f"{told}\nAll: {whole}"
