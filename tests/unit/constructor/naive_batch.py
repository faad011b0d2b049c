"""What a step's batches must hold, token by token in plain Python: slow, obvious, shares no code."""

from __future__ import annotations

from dataclasses import dataclass

from dataloader_client._pb import plan_pb2
from dataloader_svc.testing.scripted_roles import Script


@dataclass
class Token:
    id: int
    label: int
    weight: float
    position: int
    document: int  # number in its sequence, from 1; padding documents count, fillers are 0
    kind: int | None = None  # of the medium whose placeholder this is
    patches: bytes = b""  # of its merge x merge patches
    medium: tuple = ()  # which medium, for counting
    times: tuple = ()  # of all frames of that medium
    span: tuple = ()
    pair: int = 0  # 2k + 1 in the chosen and 2k + 2 in the rejected document of the microbatch's k-th pair


def naive_microbatch(script: Script, placed: plan_pb2.PlacedPlan, dp: int, microbatch: int, multiple: int):
    """Sequences of a rank's microbatch: lists of Tokens, padded to `multiple` or, padded layout, to rows."""
    record = placed.record
    sequences = [
        number
        for number in range(len(placed.dp_rank))
        if placed.dp_rank[number] == dp and placed.microbatch[number] == microbatch
    ]
    out = []
    pairs = 0
    for number in sequences:
        tokens: list[Token] = []
        documents = 0
        bounds = record.sequence_offsets[number : number + 2]  # one or none: an empty one behind the last
        for piece in range(*bounds) if len(bounds) == 2 else ():
            found = _piece(script, record, piece, documents + 1, pairs)
            documents = found[-1].document
            pairs = max(pairs, *((token.pair + 1) // 2 for token in found))
            tokens += found
        length = len(tokens)
        if script.layout == "padded":
            if not tokens:
                tokens.append(Token(0, -100, 0.0, 0, 1))
            length = max(length, script.sequence_length)
        length = max(length, 1)
        while length % multiple:
            length += 1
        filler = 0 if script.layout == "padded" else documents + 1
        missing = length - len(tokens)
        tokens += [Token(0, -100, 0.0, i, filler) for i in range(missing)]
        out.append(tokens)
    return out


def _piece(script: Script, record: plan_pb2.PlanRecord, piece: int, number: int, pairs: int) -> list[Token]:
    source = record.sources[record.source[piece]]
    epoch, position = record.epoch[piece], record.position[piece]
    start, length = record.start[piece], record.length[piece]
    document = script.document(source, epoch, position)
    span = (source, epoch, position, start, length)
    tokens = []
    for place in range(length):
        here = start + place
        token = Token(int(document.ids[here]), -100, 0.0, place, number, span=span)
        if document.second:
            rejected = place >= document.second
            token.document += rejected
            token.position -= rejected * document.second
            token.pair = (2 * pairs + 1 + rejected) * document.ok
        last = place + 1 in (length, document.second)
        if not last and document.ok and document.targets[here + 1]:
            token.label, token.weight = int(document.ids[here + 1]), 1.0
        tokens.append(token)
    for index, medium in enumerate(document.media):
        group = script.merge**2
        for k in range(len(medium.pixels) // group):
            token = tokens[medium.start - start + k]
            token.kind = medium.kind
            pixels = medium.pixels[k * group : (k + 1) * group]
            token.patches = pixels.tobytes() if document.ok else bytes(pixels.size)
            token.medium = (source, epoch, position, index)
            token.times = tuple(medium.times.tolist())
    return tokens
