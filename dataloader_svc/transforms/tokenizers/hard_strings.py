"""Strings on which tokenizer libraries have been seen to disagree: `text.py` compares its back ends on them.

Data only. Add a string when a disagreement is found in the wild; it then decides for everyone.
"""

from __future__ import annotations

HARD_STRINGS: tuple[str, ...] = (
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t\t \n  \n",
    " a",
    "a ",
    "a  b   c    d",
    "\u00a0\u2003\u3000x\u200b\ufeffy\u2028z",  # spaces that are not ASCII
    "don't I'll WE'RE they'd 'S ''s",  # contractions, where regex variants differ by case
    "CamelCaseHTTPServer2XX snake_case kebab-case",
    "0 1 12 123 1234 12345 1234567890 3.14159e-10 1,000,000 \u0663\u0664\u0665 \u00bd \u2167",  # digit groups
    "x" * 5000,  # one pre-token of 5,000 letters
    "ab" * 1500 + " " * 700 + "=" * 700,
    "caf\u00e9 cafe\u0301 \u00c5 A\u030a \ufb01 \u1e9b\u0323",  # composed and decomposed: normalizers
    "\u1112\u1161\u11ab \ud55c",  # conjoining jamo
    # joined emoji
    "\U0001f469\u200d\U0001f680 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u2764\ufe0f \U0001fae8",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f\uc548\ub155",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    # marks above and below
    "\u0627\u0644\u0633\u0644\u0627\u0645",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 \u0ba8\u0bbf",
    "a\u0300\u0301\u0302\u0303\u0304" * 40,
    "\x00\x01\x02\x07\x1b[31mred\x1b[0m\x7f\x85",
    "\ufffd \U0010ffff \ue000 \U000e0041",
    "\u2581leading \u0120gpt \u010a",  # the marks that vocabularies themselves use
    "<s> </s> <unk> [CLS] [MASK] <|endoftext|> <|im_start|>user\n<|im_end|> <pad>",
    "see <|endoftext|>here <|endoftext|><|endoftext|> <|endoftext",
    "<\uff5cend\u2581of\u2581sentence\uff5c> <image> <think>hm</think>",
    "def f(x):\n\tif x:\n        return {'a': [1, 2, 3]}  # \u2713\n\n\n",
    '{"k":"v\\n\\u00e9","n":[-1.5e+3,null,true]}',
    "https://user:pw@example.org:8080/a/b.html?q=1&r=%20#frag",
    "#include <stdio.h>\n/* ===== */ int main(void){return a->b&&!c||d<<=2;}",
    "$\\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}$ \u2203x\u2208\u211d: x\u00b2\u22600",
    "\u00ab\u00a0Bonjour\u00a0\u00bb \u2014 \u201cquoted\u201d \u2026 \u00bfQu\u00e9? \u00a1S\u00ed!",
    "...!!!???---___***~~~```'''\"\"\"",
    "\u01c5 \u0130stanbul \u00dfSS \u03a3\u03c3\u03c2 \u212a",  # case pairs that fold oddly
)
