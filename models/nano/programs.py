"""Little Python programs from a grammar of our own: a function or two, and assertions of what they return.

They are there to be copied and rewritten, so that names come back often; nothing is taken from anywhere. Every program
runs: what its assertions compare with was computed by it.
"""

import random

SEED, MANY, LONGEST = 41, 1000, 1000
VERBS = (
    *("get", "make", "find", "count", "collect", "mix", "join", "pick", "fold", "scale", "shift", "merge", "weigh"),
    *("grade", "trim", "pack", "sort_out", "measure", "combine", "compare"),
)
NOUNS = (
    *("apples", "scores", "steps", "prices", "lengths", "heights", "boxes", "cards", "coins", "marks", "points"),
    *("ages", "weights", "tickets", "sizes", "shells", "pages", "stones", "seeds", "wheels", "hours"),
)
ENDS = ("", "", "_of_day", "_again", "_by_hand", "_in_order", "_at_home", "_with_limit", "_for_all")
ITEMS = ("x", "n", "value", "item", "one", "entry", "current", "number")
TOTALS = ("total", "result", "found", "acc", "answer", "best", "score", "left")
LIMITS = ("limit", "least", "most", "edge", "k", "bound", "step")
WORDS = ("tree", "river", "moon", "cake", "boat", "kite", "garden", "frog", "lamp", "stone", "window", "bread")


def value(rng, names, depth=2):
    """An expression of whole numbers over the names."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice((*names, *names, str(rng.randint(1, 20))))
    a, b = value(rng, names, depth - 1), value(rng, names, depth - 1)
    forms = (f"{a} + {b}", f"{a} - {b}", f"({a}) * {rng.randint(2, 9)}", f"({a}) // {rng.randint(2, 9)}")
    forms += (f"({a}) % {rng.randint(2, 12)}", f"abs({a})", f"max({a}, {b})", f"min({a}, {b})")
    return rng.choice(forms)


def test(rng, names):
    """A condition over the names."""
    kind = rng.randrange(4)
    if kind == 0:
        return f"({value(rng, names, 1)}) % {rng.randint(2, 7)} == {rng.randint(0, 2)}"
    if kind == 1:
        return f"{rng.randint(0, 9)} < {rng.choice(names)} <= {rng.randint(10, 60)}"
    return f"{value(rng, names, 1)} {rng.choice(('<', '>', '<=', '>=', '!='))} {value(rng, names, 1)}"


def total(rng, f, xs, x, t, k):
    """A sum with conditions."""
    yield f"def {f}({xs}, {k}):", f"    {t} = {rng.randint(0, 9)}", f"    for {x} in {xs}:"
    yield f"        if {test(rng, (x, k))}:", f"            {t} += {value(rng, (x, k))}"
    if rng.random() < 0.6:
        yield "        else:", f"            {t} -= {value(rng, (x,), 1)}"
    if rng.random() < 0.4:
        yield f"    if {test(rng, (t, k))}:", f"        return {value(rng, (t, k), 1)}"
    yield (f"    return {t}",)


def listed(rng, f, xs, x, t, k):
    """A new list of an old one."""
    if rng.random() < 0.4:
        yield f"def {f}({xs}, {k}):", f"    {t} = [{value(rng, (x, k))} for {x} in {xs} if {test(rng, (x, k))}]"
    else:
        yield f"def {f}({xs}, {k}):", f"    {t} = []", f"    for {x} in {xs}:"
        yield f"        {x} = {value(rng, (x, k))}", f"        if {test(rng, (x,))}:", f"            {t}.append({x})"
    yield (rng.choice((f"    return {t}", f"    return sorted({t})", f"    return {t}[:{k}]", f"    return len({t})")),)


def paired(rng, f, xs, x, t, k):
    """A table of how often something comes."""
    yield f"def {f}({xs}, {k}):", f"    {t} = {{}}", f"    for i, {x} in enumerate({xs}):"
    yield f"        key = ({value(rng, (x, 'i'), 1)}) % {rng.randint(2, 6)}", f"        if {test(rng, (x, k))}:"
    yield f"            {t}[key] = {t}.get(key, 0) + {value(rng, (x, 'i'), 1)}", f"    return sorted({t}.items())"


def stepped(rng, f, xs, x, t, k):
    """A loop until a number is small."""
    yield f"def {f}({xs}, {k}):", f"    {t}, rounds = sum({xs}), 0", f"    while {t} > {rng.randint(1, 9)}:"
    yield f"        {x} = {t} % {rng.randint(2, 12)}", f"        {t} = {t} // {rng.randint(2, 5)}"
    yield f"        rounds += {value(rng, (x, k), 1)}", f"    return {rng.choice((t, 'rounds', f'rounds + {k}'))}"


def nested(rng, f, xs, x, t, k):
    """Pairs of a list."""
    yield f"def {f}({xs}, {k}):", f"    {t} = 0", f"    for i in range(len({xs})):"
    yield f"        for j in range(i + 1, len({xs})):", f"            {x} = {value(rng, (f'{xs}[i]', f'{xs}[j]'), 1)}"
    yield f"            if {test(rng, (x, k))}:", f"                {t} = max({t}, {x})", f"    return {t}"


def spelled(rng, f, xs, x, t, k):
    """Words in a text."""
    yield f"def {f}({xs}, {k}):", f"    {t} = []", f"    for {x} in {xs}:"
    way = rng.choice((f"{x}.upper()", f"{x}[::-1]", f"{x} * 2", f"{x}.replace('{rng.choice('aeo')}', '-')"))
    yield f"        if len({x}) {rng.choice(('<', '>', '!='))} {k}:", f"            {t}.append({way})"
    yield (f"    return {rng.choice((repr(', '), repr(' '), repr('-')))}.join({t})",)


def program(rng):
    """One program, and what it asserts."""
    make = rng.choice((total, total, listed, listed, paired, stepped, nested, spelled))
    f, xs = f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}{rng.choice(ENDS)}", rng.choice(NOUNS)
    x, t, k = rng.choice(ITEMS), rng.choice(TOTALS), rng.choice(LIMITS)
    code, space = "\n".join(line for lines in make(rng, f, xs, x, t, k) for line in lines), {}
    exec(code, space)
    checks = []
    for _ in range(rng.randint(1, 3)):
        given = rng.sample(WORDS, rng.randint(2, 5)) if make is spelled else rng.choices(range(60), k=rng.randint(2, 6))
        k = rng.randint(2, 9)
        checks.append(f"assert {f}({given}, {k}) == {space[f](given, k)!r}")
    return code + "\n\n" + "\n".join(checks)


def programs():
    """The recipe's programs, always the same."""
    rng = random.Random(SEED)
    made = dict.fromkeys(program(rng) for _ in range(MANY))
    return [code for code in made if len(code) < LONGEST]
