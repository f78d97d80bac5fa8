"""Texts that the tokenizer must cut as the reference does: many scripts, and what breaks tokenizers.

Every sentence was written for these tests.
"""

import random

SENTENCES = [
    "",
    " ",
    "a",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog. It's late; they're tired, we'll go, I'd stay.",
    "IT'S SHOUTING: DON'T, WE'LL, YOU'RE, I'VE, I'M, HE'D",
    "it\u2019s a curly apostrophe, don\u2019t split it as ASCII; \u02bcmodifier",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE '\u017f \u017ft \u212aelvin",
    "def f(x):\n    if x > 1:\n\treturn x ** 2  # square\n    return [i for i in range(10)]\n",
    "<html>\n  <body class=\"a-b\">&nbsp;</body>\r\n</html>\r\n",
    "{\"key\": [1, 2.5, -3e10, null, true], \"other\": \"va\\\"lue\\n\"}",
    "https://example.org/path?q=1&lang=de#frag user@example.com C:\\Temp\\x.txt",
    "1 12 123 1234 12345 1,234,567.89 3.14159 0x1F 1e-9 50% $9.99 \u20ac5 #1 2024-12-31",
    "\u0661\u0662\u0663 \u06f1\u06f2\u06f3 \u0967\u0968\u0969 \uff11\uff12\uff13 \u00bd \u00b2 \u2167 \u2460 \u216b\u3007 \U0001d7d8",
    "line one\nline two\r\nline three\rline four\n\n\n\nend",
    "trailing spaces   \n  leading   inner    runs\t\ttabs \t mixed \n \n x",
    "     ",
    "\n\n\n",
    " \n \n ",
    "a  b   c    d     e      f",
    "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u180eh\u200bi\ufeffj\u1680k\u202fl\u205fm",
    "\u180e\u180e \u180e a\u180e",
    "\x00\x01\x02\x07\x08\x0b\x0c\x1b[0m\x1c\x1d\x1e\x1f\x7f\x80\x9f",
    "Gr\u00fc\u00dfe aus K\u00f6ln, o\u00f9 \u00eates-vous? Se\u00f1or, \u00bfqu\u00e9 tal? \u00c5ngstr\u00f6m, na\u00efve fa\u00e7ade",
    "decomposed: e\u0301 a\u0308 o\u0302\u0301 n\u0303 A\u030a \u1100\u1161\u11a8 \u0915\u093c \u0061\u0323\u0307 \u0061\u0307\u0323",
    "singletons: \u212b \u2126 \u00c5 \u03a9 \uf900 \u2f800 \u0958 \u095c \ufb1d \u0344 \u0340",
    "zalgo: t\u0336\u0321\u0322e\u0334\u0353\u031bx\u0335\u0351\u0349t",
    "\u0301starts with a mark \u0301\u0301 and \u0327\u0301 order",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430? \u0401\u043b\u043a\u0430 \u0438 \u0439\u043e\u0433\u0430 \u0438\u0306 \u0435\u0308.",
    "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03ba\u03cc\u03c3\u03bc\u03b5, \u03c4\u03b9 \u03ba\u03ac\u03bd\u03b5\u03b9\u03c2; \u0391\u03a3 \u03b1\u03c2",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd, \u05de\u05b8\u05d4 \u05e9\u05c1\u05b0\u05dc\u05d5\u05b9\u05de\u05b0\u05da\u05b8?",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u0643\u064e\u064a\u0652\u0641\u064e \u062d\u0627\u0644\u064f\u0643\u061f \u0622 \u0623 \u0627\u0653",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e, \u0906\u092a \u0915\u0948\u0938\u0947 \u0939\u0948\u0902? \u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f",
    "\u09a8\u09ae\u09b8\u09cd\u0995\u09be\u09b0 \u09ac\u09bf\u09b6\u09cd\u09ac \u09a1\u09bc \u09af\u09bc \u09cb \u09c7\u09be",
    "\u0bb5\u0ba3\u0b95\u0bcd\u0b95\u0bae\u0bcd \u0b89\u0bb2\u0b95\u0bae\u0bcd \u0bca \u0bc6\u0bbe",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0e19\u0e49\u0e33 \u0e99\u0ec9\u0eb3",
    "\u1019\u1004\u103a\u1039\u1002\u101c\u102c\u1015\u102b \u1025\u102e \u1026",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u6211\u4eec\u53bb\u516c\u56ed\u73a9\u5427\u3002 \U00020000\U0002a6d6 \u3005\u3007",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u3002\u30ab\u30bf\u30ab\u30ca\u3068\u304b\u304c \u304b\u3099 \u30cf\u309a \uff76\uff9e \u30fc\u30fb",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4 \u1112\u1161\u11ab\u1100\u1173\u11af \u3131\u314f \ud7a3",
    "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0 \u0532\u0561\u0580\u0587 \u1230\u120b\u121d \u13e3\u13b3\u13a9 \u1401\u14c4",
    "\u0f56\u0f40\u0fb2\u0f0b\u0f64\u0f72\u0f66\u0f0b \u1780\u17d2\u1798\u17c2\u179a \u1820\u180e\u1821 \ua000\ua001 \u2d30\u2d31",
    "\U00010330\U00010331 \U00010400\U00010428 \U0001d400\U0001d401 \U00012000 \U00013000 \U0001e900",
    "emoji: \U0001f600\U0001f680 \u2764\ufe0f \U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea\U0001f1ef\U0001f1f5 1\ufe0f\u20e3 \u263a \U0001f3f4\U000e0067\U000e0062\U000e007f",
    "math: \u2200x \u2208 \u211d: \u2203y \u2264 x\u00b2 \u2260 \u222b\u2080\u00b9 f dx \u2192 \u221e \u00b1 \u221a2 \u2211",
    "\u201cquotes\u201d \u2018single\u2019 \u00abguillemets\u00bb \u2014 dash \u2013 en \u2026 \u2022 \u00a7 \u00b6 \u2020 \u00a9 \u00ae \u2122",
    "\u2500\u2502\u250c\u2510 \u2588\u2591 \u2190\u2191 \ue000\uf8ff private \U000f0000 \ufffd \ufffe \uffff",
    "snake_case camelCase PascalCase kebab-case SCREAMING_CASE x1y2z3 _private __dunder__",
    "!!!??? ... ,,, ;;; ::: --- === *** /// \\\\\\ ((( ))) [[[ ]]] {{{ }}} <<< >>> &&& ||| ^^^ ~~~ ``` @@@ ###",
    "~!@#$%^&*()_+`-={}|[]\\:\";'<>?,./",
    "mixed\u4e2d\u6587English\u0440\u0443\u0441\u0441\u043a\u0438\u0439\ud55c\uad6d\uc5b4 text123\u6570\u5b57456",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc",
    "Donaudampfschifffahrtselektrizit\u00e4tenhauptbetriebswerkbauunterbeamtengesellschaft",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_end|><|endoftext|><|im_start| ><|im_en<|im_end|>d|>",
    "a <mask> b<mask>c  <mask>  d\n<mask>\n",
    "one WORD here, WORDs not, sWORD not, WORD",
    "Caf\u00c9 CAFE\u0301 caf\u00e9 cafe\u0301 norm caf\u00e9s",
    "x<think>\n\nreason</think>\n\nanswer",
    "word" + " " * 40 + "word" + "\n" * 30 + "word" + "\t" * 20,
]

INVALID = [
    b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"ab\xc3\x28cd", b"\xa0\xa1", b"\xe2\x28\xa1",
    b"\xe2\x82\x28", b"\xf0\x28\x8c\xbc", b"\xf0\x90\x28\xbc", b"\xf0\x90\x8c\x28", b"\xf8\xa1\xa1\xa1\xa1",
    b"\xed\xa0\x80\xed\xb0\x80", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\xaf", b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80", b"ok \xf0\x9f\x98\x80 \xf0\x9f\x98 then \xe4\xbd\xa0 \xe4\xbd", b"\x80" * 9,
    b"\xfe\xfe\xff\xff", b"a\xe2\x82\xe2\x82\xac", b"<|im_\xffstart|><|im_start|>\xc3",
]

# (piece, how often): compared by hash.
LONG = [
    ("a", 20000), ("ab", 10000), ("\u00e9", 8000), (" ", 10000), ("\n", 5000), ("9", 5000),
    ("\u4f60", 5000), ("word and more words, 42 of them.\n", 500), ("\U0001f600", 3000),
    ("<|im_start|>", 1000), ("e\u0301", 4000), ("-", 9000), (" \n", 5000),
]

_POOLS = [
    (0x20, 0x7E), (0x20, 0x7E), (0x61, 0x7A), (0x61, 0x7A), (0x30, 0x39), (0x00, 0x1F), (0x09, 0x0D),
    (0xA0, 0x17F), (0x300, 0x345), (0x370, 0x3FF), (0x400, 0x45F), (0x5B0, 0x5EA), (0x620, 0x669),
    (0x905, 0x94D), (0xE01, 0xE4D), (0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2),
    (0x2000, 0x2060), (0x2190, 0x2210), (0x3000, 0x30FF), (0x4E00, 0x4F00), (0xAC00, 0xAD00),
    (0xFB00, 0xFB06), (0xFE00, 0xFE0F), (0xFF01, 0xFF9F), (0x1F300, 0x1F64F), (0x1F1E6, 0x1F1FF),
    (0x20000, 0x20100), (0x1D400, 0x1D500),
]


def random_texts(count, seed):
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        pieces = []
        for _ in range(rng.randint(1, 12)):
            low, high = rng.choice(_POOLS)
            pieces.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 5))))
            if rng.random() < 0.4:
                pieces.append(rng.choice([" ", "  ", "\n", "'s", "\r\n", "\t", "\u00a0", "'LL", "<|im_end|>"]))
        texts.append("".join(pieces))
    return texts
