"""Lessons on lists of names, for models that write several tokens at once."""

from names import BOYS, GIRLS

from edgedec.bench.list_tasks import MARK, OPERATIONS, list_task, written

NAMES = (*GIRLS, *BOYS)


def lesson(rng, kind=None):
    """-> a prompt and its answer, as `prompts.encoded` takes them."""
    task = list_task(kind or rng.choice(tuple(OPERATIONS)), rng, NAMES)
    return task.prompt, written(task.answer)


def parts(rng):
    """Several lists, each answered by itself, then all of them in one (NAP's independent parts and a summary)."""
    kind, lists = rng.choice(("copy", "reverse", "sort")), [rng.sample(NAMES, 3) for _ in range(rng.randint(2, 3))]
    order, answers = "", []
    for names in lists:
        order, answer = OPERATIONS[kind](names, rng, NAMES)
        answers.append(answer)
    given = "\n".join(written(names) for names in lists)
    told = "\n".join(written(names) for names in answers)
    whole = written([name for names in answers for name in names])
    return f"{order[:-1]}s, one by one.\n\n{given}{MARK}", f"{told}\nAll: {whole}"
