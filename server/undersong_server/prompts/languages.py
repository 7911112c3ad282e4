"""Names and codes of languages, so that a task may state either: prompts need the name, a card's header the code."""

import difflib
import re
from collections.abc import Callable
from typing import TypeVar

# ISO 639-1: code and English name, and other English names that people write.
_ISO_639_1 = """
aa Afar|ab Abkhazian|af Afrikaans|ak Akan|am Amharic|an Aragonese|ar Arabic|as Assamese|av Avaric|ay Aymara
az Azerbaijani|ba Bashkir|be Belarusian|bg Bulgarian|bh Bihari|bi Bislama|bm Bambara|bn Bengali|bo Tibetan|br Breton
bs Bosnian|ca Catalan/Valencian|ce Chechen|ch Chamorro|co Corsican|cr Cree|cs Czech|cu Church Slavonic|cv Chuvash
cy Welsh|da Danish|de German|dv Divehi/Maldivian|dz Dzongkha|ee Ewe|el Greek|en English|eo Esperanto
es Spanish/Castilian|et Estonian|eu Basque|fa Persian/Farsi|ff Fulah|fi Finnish|fj Fijian|fo Faroese|fr French
fy Western Frisian/Frisian|ga Irish|gd Scottish Gaelic/Gaelic|gl Galician|gn Guarani|gu Gujarati|gv Manx|ha Hausa
he Hebrew|hi Hindi|ho Hiri Motu|hr Croatian|ht Haitian/Haitian Creole|hu Hungarian|hy Armenian|hz Herero
ia Interlingua|id Indonesian|ie Interlingue|ig Igbo|ii Sichuan Yi|ik Inupiaq|io Ido|is Icelandic|it Italian
iu Inuktitut|ja Japanese|jv Javanese|ka Georgian|kg Kongo|ki Kikuyu|kj Kwanyama|kk Kazakh|kl Kalaallisut/Greenlandic
km Khmer|kn Kannada|ko Korean|kr Kanuri|ks Kashmiri|ku Kurdish|kv Komi|kw Cornish|ky Kyrgyz/Kirghiz|la Latin
lb Luxembourgish|lg Ganda|li Limburgish|ln Lingala|lo Lao|lt Lithuanian|lu Luba-Katanga|lv Latvian|mg Malagasy
mh Marshallese|mi Maori|mk Macedonian|ml Malayalam|mn Mongolian|mr Marathi|ms Malay|mt Maltese|my Burmese|na Nauru
nb Norwegian Bokmal|nd North Ndebele|ne Nepali|ng Ndonga|nl Dutch/Flemish|nn Norwegian Nynorsk|no Norwegian
nr South Ndebele|nv Navajo|ny Chichewa|oc Occitan|oj Ojibwa|om Oromo|or Oriya/Odia|os Ossetian|pa Punjabi/Panjabi
pi Pali|pl Polish|ps Pashto|pt Portuguese|qu Quechua|rm Romansh|rn Rundi|ro Romanian|ru Russian|rw Kinyarwanda
sa Sanskrit|sc Sardinian|sd Sindhi|se Northern Sami|sg Sango|si Sinhala|sk Slovak|sl Slovenian|sm Samoan|sn Shona
so Somali|sq Albanian|sr Serbian|ss Swati|st Southern Sotho|su Sundanese|sv Swedish|sw Swahili|ta Tamil|te Telugu
tg Tajik|th Thai|ti Tigrinya|tk Turkmen|tl Tagalog|tn Tswana|to Tonga|tr Turkish|ts Tsonga|tt Tatar|tw Twi|ty Tahitian
ug Uighur/Uyghur|uk Ukrainian|ur Urdu|uz Uzbek|ve Venda|vi Vietnamese|vo Volapuk|wa Walloon|wo Wolof|xh Xhosa
yi Yiddish|yo Yoruba|za Zhuang|zh Chinese/Mandarin|zu Zulu
"""
_NAMES_BY_CODE = {
    entry[:2]: tuple(entry[3:].split("/")) for line in _ISO_639_1.split("\n") for entry in line.split("|") if entry
}
_CODES_BY_NAME = {name.casefold(): code for code, names in _NAMES_BY_CODE.items() for name in names}
# A code of three letters is one of ISO 639-3, which has thousands of languages.
_CODE = re.compile(r"([a-z]{2,3})((?:[-_][a-z0-9]{2,8})*)", re.IGNORECASE)
Stated = TypeVar("Stated")
UNKNOWN = "names no language; write its English name or its code, such as English or en"


def language_name(stated: str) -> str:
    """Returns the English name of a stated language, for prompts: "en" and "english" become "English".

    A phrase that holds such a name, as "Swiss German" does, stays as it is. Raises ValueError for any other.

    >>> language_name("de-AT"), language_name("swiss german"), language_name(" ")
    ('German', 'swiss german', '')
    """
    stated_words = " ".join(stated.split())
    names = _NAMES_BY_CODE.get(_code_of(stated_words).partition("-")[0])
    if names:
        return names[0]
    if not stated_words or any(word in _CODES_BY_NAME for word in stated_words.casefold().split()):
        return stated_words
    raise ValueError(_unknown_words(stated_words))


def language_code(stated: str) -> str:
    """Returns the code of a stated language, for a card's header: "English" and "EN" become "en", a region stays.

    Raises ValueError for what is neither the name nor the code of a language.

    >>> language_code("English"), language_code("pt_br"), language_code("gsw"), language_code("")
    ('en', 'pt-BR', 'gsw', '')
    """
    stated_words = " ".join(stated.split())
    code = _code_of(stated_words)
    if not stated_words or code:
        return code
    raise ValueError(_unknown_words(stated_words))


def for_text(reading: Callable[[str], str]) -> Callable[[Stated], Stated | str]:
    """Returns a validator that applies ``reading`` to a text and returns values of other types as they are."""
    return lambda stated: reading(stated) if isinstance(stated, str) else stated


def _code_of(words: str) -> str:
    """Returns the code of a language that is stated by name or code, with its region; "" for anything else."""
    if words.casefold() in _CODES_BY_NAME:
        return _CODES_BY_NAME[words.casefold()]
    code = _CODE.fullmatch(words)
    if code is None or (len(code[1]) == 2 and code[1].lower() not in _NAMES_BY_CODE):
        return ""
    region_parts = re.split("[-_]", code[2])[1:]
    regions = [part.upper() if len(part) == 2 else part for part in region_parts]
    return "-".join([code[1].lower(), *regions])


def _unknown_words(words: str) -> str:
    guesses = difflib.get_close_matches(words.title(), map(str.title, _CODES_BY_NAME), n=1, cutoff=0.8)
    return "; ".join([UNKNOWN, *(f"did you mean {guess}?" for guess in guesses)])
