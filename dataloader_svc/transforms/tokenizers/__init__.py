"""Tokenizers: every file that people have, one interface, ids of the file's own library.

`load.py` tells kinds of files apart, one module each reads them; `choose.py` takes fastokens where it agrees
with the reference; `tokenizer.py` is what the service holds.
"""

from dataloader_svc.transforms.tokenizers.base import Flat as Flat
from dataloader_svc.transforms.tokenizers.hard_strings import HARD_STRINGS as HARD_STRINGS
from dataloader_svc.transforms.tokenizers.tokenizer import Tokenizer as Tokenizer
