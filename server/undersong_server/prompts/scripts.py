r"""Properties of writing systems that tell where a sentence, an item or a number ends, whatever the language.

The classes are contents of a regular expression's brackets. They are Unicode's own properties; Python has no interface
to them, so they stand here, and a test compares them with the library ``regex``.
"""

import re

# Sentence_Terminal of Unicode 17 without ".", "!" and "?", which end a sentence only where white space follows
TERMINALS = (
    r"\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b\u1362\u1367\u1368"
    r"\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f"
    r"\u1c3b\u1c3c\u1c7e\u1c7f\u2024\u203c\u203d\u2047-\u2049\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u2e60\u2e61\u3002\ua4ff"
    r"\ua60e\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe12\ufe15\ufe16"
    r"\ufe52\ufe56\ufe57\uff01\uff0e\uff1f\uff61\U00010a56\U00010a57\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047"
    r"\U00011048\U000110be-\U000110c1\U00011141-\U00011143\U000111c5\U000111c6\U000111cd\U000111de\U000111df\U00011238"
    r"\U00011239\U0001123b\U0001123c\U000112a9\U000113d4\U000113d5\U0001144b\U0001144c\U000115c2\U000115c3"
    r"\U000115c9-\U000115d7\U00011641\U00011642\U0001173c-\U0001173e\U00011944\U00011946\U00011a42\U00011a43\U00011a9b"
    r"\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5\U00016b37"
    r"\U00016b38\U00016b44\U00016d6e\U00016d6f\U00016e98\U0001bc9f\U0001da88"
)
# Blocks of Arabic, Syriac, the scripts of India, Tibetan, Burmese, Khmer, Mongolian and their relatives, whose letters
# take another form beside U+200C and U+200D
JOINING = (
    r"\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1700-\u18af\u1900-\u1c4f\ua840-\ua87f\ua8e0-\ua8ff\ua980-\uaadf\uabc0-\uabff"
    r"\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00010fff\U00011000-\U00011fff"
)
# Thai, Lao, Burmese and Khmer, which write no space between words and mark the end of one by U+200B
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f"
_SENTENCES_BY_SPACES = r"\u0e00-\u0eff"  # Thai and Lao end a sentence with a space
EMOJI = r"\u2190-\u2bff\ufe0f\U0001f000-\U0001faff"  # U+200D joins these to one picture.
COLONS = r":\u0589\u05c3\u0703-\u0708\u1365\u1366\u17d6\u1804\ufe13\ufe30\ufe55\uff1a"
WIDE_COLONS = r"\ufe13\uff1a"  # no space follows these
SEPARATORS = r",;\n\u060c\u061b\u3001\uff0c\u30fb\uff1b\uff64\uff65"  # marks between the items of a list
CLOSING = r"\"'”’»›)\]）］」』】》〉"  # stand after the mark that ends a sentence
# A numbered or bulleted line: digits are of any script, and Chinese counts with words
NUMBER = r"(?:[(（]?(?:\d{1,3}|[一二三四五六七八九十]{1,3})(?:[.)](?=\s)|[．）、])|[\u2460-\u2473])"
ITEM = rf"[ \t]*(?:{NUMBER}|[-*•–・](?=\s))[ \t]*"

SENTENCE_END = re.compile(
    rf"[.!?…][{CLOSING}]*(?=\s|\Z)|[{TERMINALS}][{CLOSING}]*|(?<=[{_SENTENCES_BY_SPACES}])(?=[ \t])|\n"
)
