"""One file a peer. Each gives `text(task)` and `images(task)`: endless batches of one rank.

A batch of text is what a trainer with variable-length attention needs of at least one packed sequence of
8,192 tokens: input_ids, labels (shifted, -100 where a document ends), position_ids, cu_seqlens. One of
pictures is a list of uint8 patch arrays. `service(task)` is a context manager that yields an address,
`convert(task)` writes the peer's format.
"""
