"""Drafts copies of earlier text, followed through edits (Aggressive Decoding, prompt lookup).

A track points at the place in earlier text (prompt and output) that the text follows now. While it is
right, what stands there next is proposed as a long chain. When it is wrong, the text may have replaced a token
(continue after it), put one in (continue with it) or left some out (continue where the new token is): each becomes
a track of its own, and the tree holds the next tokens of them all until one proves right. Replacements that
proved right are remembered: where the source says the old word again, the new one is proposed. The
longest recent n-gram gives tracks too.
"""

from __future__ import annotations

from typing import Annotated, Any

from edgedec.decoding.context import Context
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, DrafterFacts
from edgedec.drafters._tables.compiled import CompiledCopy, compiled
from edgedec.drafters._tables.tracks import CLAIMS, RUN, Track, TrackTree, ahead_of, strength
from edgedec.plugins import Opt
from edgedec.runtime import TableSettings

_LEAST = 0.04  # a path less likely than this is not worth its row anywhere
_WALK = 32  # how far back agreement is counted at a new place, and how many tokens of a long text are followed
_SURE = 4  # after so long an agreement, a mismatch is taken for an edit
_FIRM = 16  # after so long an agreement, no other place is looked for
_NEAR = 24  # how far after a lost place the text may continue
_PATIENCE = 12  # for how many tokens a lost place is remembered
_TRACKS = 4
_SHIFT = 20
_MASK = tuple((1 << (_SHIFT * n)) - 1 for n in range(9))
_NEVER = [-1, 0, 0]
_REPLACED, _INSERTED, _OMITTED = 0.62, 0.25, 0.45

FACTS = DrafterFacts(auto=1, table="text", paper="Lossless Acceleration by Aggressive Decoding; prompt lookup")


def make(
    host: DrafterContext,
    ngram: Annotated[int, Opt("Longest run of tokens that is looked up.", 1, len(_MASK) - 1)] = 4,
    length: Annotated[int, Opt("Longest draft, in tokens.", 1, 256, aliases=("gamma",))] = 32,
) -> Drafter:
    return compiled(host, TableSettings("copy", ngram=ngram, length=length), CompiledCopy) or Copy(ngram, length)


class Copy(BaseDrafter):
    def __init__(self, ngram: int = 4, length: int = 32) -> None:
        self._ngram, self._length, self._mask = ngram, length, _MASK[ngram]
        self._found = {"tokens": 0, "edits": 0, "replacements": 0}
        self.reset()

    def reset(self) -> None:
        # ends[n - 1]: an n-gram, packed into an integer -> the place of the token after its last occurrence.
        self._ends: list[dict[int, int]] = [{} for _ in range(self._ngram)]
        self._read = 0
        self._key = 0
        self._levels = list(zip(self._ends, _MASK[1:], strict=False))
        self._tracks: list[Track] = []
        self._lost: tuple[int, int] | None = None
        self._patience = 0
        # A token of the source -> [what replaced it last, how often so, how often it stayed]
        self._renamed: dict[int, list[int]] = {}

    def report(self) -> dict[str, Any]:
        return dict(self._found)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        ids = context.ids
        self._follow(ids)
        if nodes <= 0 or not self._tracks:
            return Draft()
        return self._draft(ids, nodes, max(min_path_prob, _LEAST))

    def _follow(self, ids: list[int]) -> None:
        """Process the tokens since the last call."""
        n = len(ids)
        if n < self._read:  # never between two resets; but a wrong index would be worse than a slow one
            self.reset()
        if n - self._read > 2 * _WALK:
            self._index(ids, n - _WALK)
        for i in range(self._read, n):
            self._step(ids, i)
        self._read = n

    def _index(self, ids: list[int], stop: int) -> None:
        """Index the tokens before `stop` all at once; what each of them followed is not needed."""
        start = self._read
        self._tracks, self._lost = [], None
        keys = ids[start:stop]
        before = [(self._key >> (_SHIFT * n)) & _MASK[1] for n in range(self._ngram)]
        for n, ends in enumerate(self._ends):
            if n:
                # An n-gram is the (n-1)-gram that ended one token earlier, and the token.
                earlier = sum(before[i] << (_SHIFT * i) for i in range(n))
                keys = [(k << _SHIFT) | t for k, t in zip([earlier, *keys[:-1]], ids[start:stop], strict=True)]
            ends.update(zip(keys, range(start + 1, stop + 1), strict=True))
        self._key = sum(t << (_SHIFT * i) for i, t in enumerate(reversed(ids[max(0, stop - self._ngram) : stop])))
        self._read = stop

    def _step(self, ids: list[int], i: int) -> None:
        """Token `i` has come: move the tracks, open new ones, index it."""
        token = ids[i]
        tracks: list[Track] = []
        lost: Track | None = None
        for track in self._tracks:
            if ids[track.at] == token:
                self._right(track, token)
                tracks.append(track)
            elif track.run >= _SURE and track.doubt == 1.0 and (lost is None or track.run > lost.run):
                lost = track
        if not tracks or tracks[0].run < _SURE:
            if lost is not None:
                self._found["edits"] += 1
                self._lost, self._patience = (lost.at, lost.run), _PATIENCE
                tracks += _realigned(ids, i, lost)
            elif self._lost is not None:
                tracks += self._again(ids, i, token)
        self._look_up(ids, i, tracks)
        if len(tracks) > 1:
            tracks.sort(key=strength, reverse=True)
            places: dict[int, Track] = {}
            for track in tracks:
                places.setdefault(track.at, track)
            tracks = list(places.values())[:_TRACKS]
        self._tracks = tracks

    def _right(self, track: Track, token: int) -> None:
        track.at += 1
        track.run += 1
        if track.doubt != 1.0:
            track.doubt = 1.0
            if track.old >= 0:
                self._replaced(track.old, track.new)
        elif track.run > _SURE and token in self._renamed:
            self._renamed[token][2] += 1
        self._found["tokens"] += 1

    def _replaced(self, old: int, new: int) -> None:
        self._found["replacements"] += 1
        known = self._renamed.setdefault(old, [new, 0, 0])
        known[1] = known[1] + 1 if known[0] == new else 1
        known[0] = new

    def _again(self, ids: list[int], i: int, token: int) -> list[Track]:
        """Find tracks on which the text has returned to a source that it left some tokens ago, a little further on."""
        assert self._lost is not None
        at, run = self._lost
        self._patience -= 1
        if self._patience == 0:
            self._lost = None
        found = _next(ids, token, at, min(at + _NEAR, i))
        return [] if found < 0 else [Track(found + 1, 1 + run // 8, _OMITTED)]

    def _look_up(self, ids: list[int], i: int, tracks: list[Track]) -> None:
        """Index the n-grams that end at `i`; their last occurrences are tracks, if they are new."""
        key = self._key = (self._key << _SHIFT | ids[i]) & self._mask
        after = i + 1
        if tracks and tracks[0].run >= _FIRM:
            for ends, mask in self._levels:
                ends[key & mask] = after
            return
        found: list[int] = []
        for ends, mask in self._levels:
            part = key & mask
            found.append(ends.get(part, -1))
            ends[part] = after
        known = {-1, *(track.at for track in tracks)}
        for at in reversed(found[1:] if tracks else found):
            if at not in known:
                known.add(at)
                run = _agreement(ids, at - 1, i)
                if run:
                    tracks.append(Track(at, run))

    def _draft(self, ids: list[int], nodes: int, min_path_prob: float) -> Draft:
        """The chains of all tracks as one tree. The claim of an earlier sibling reduces that of later ones."""
        most = min(nodes, self._length)
        tree = TrackTree(min_path_prob)
        for track in self._tracks:
            ahead = ahead_of(ids, track.at, most)
            if self._renamed and not self._renamed.keys().isdisjoint(ahead):
                self._chain(tree, ahead, track)
            elif not tree.tokens:
                tree.begin(ahead, track)
            else:
                tree.extend(ahead, track)
        return tree.cut(nodes)

    def _chain(self, tree: TrackTree, ahead: list[int], track: Track) -> None:
        """A chain with replacements: where the source has been replaced, both words, continued after the likelier."""
        parent, doubt = -1, track.doubt
        for token, certain in zip(ahead, CLAIMS[min(track.run, RUN) :], strict=False):
            claim, doubt = certain * doubt, 1.0
            new, times, stayed = self._renamed.get(token, _NEVER)
            share = (times + 0.3) / (times + stayed + 0.6) if times else 0.0
            first, second, share = (new, token, share) if share >= 0.5 else (token, new, 1 - share)
            before = len(tree.tokens)
            node = tree.add(parent, first, claim * share)
            if node < 0:
                return
            if times:  # `add` gives it a part of what its sibling has left
                left = 1 - claim * share if node == before else 1.0
                tree.add(parent, second, claim * (1 - share) / left)
            parent = node


def _realigned(ids: list[int], i: int, lost: Track) -> list[Track]:
    """Places where a text that just left `lost` may continue: its token was replaced, comes later, or was left out.
    The claims are lower after a short agreement, which may be chance."""
    run = 2 + min(lost.run, RUN) // 2
    trust = min(1.0, lost.run / _FIRM)
    tracks = [Track(lost.at, run, _INSERTED * trust)]
    tracks.append(Track(lost.at + 1, run, _REPLACED * trust, ids[lost.at], ids[i]))
    found = _next(ids, ids[i], lost.at + 1, min(lost.at + _NEAR, i))
    if found >= 0:
        tracks.append(Track(found + 1, run, _OMITTED * trust))
    return tracks


def _next(ids: list[int], token: int, start: int, stop: int) -> int:
    """The first place of `token` from `start` to before `stop`; -1 if there is none."""
    try:
        return ids.index(token, start, stop)
    except ValueError:
        return -1


def _agreement(ids: list[int], a: int, b: int) -> int:
    """How many tokens up to `a` and up to `b` > a are the same."""
    run, most = 0, min(_WALK, a + 1)
    while run < most and ids[a - run] == ids[b - run]:
        run += 1
    return run
