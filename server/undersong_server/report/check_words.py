"""The words in which ``undersong verify`` and the page report.html judge the same files.

The page gets :data:`CHECK_WORDS` as JSON, because its script cannot call Python. Braces hold what each fills in.
"""

from collections.abc import Mapping

from undersong_common.printable import counted

CHECK_WORDS: Mapping[str, str] = {
    "whole": "whole: every file here is as it was written",
    "missing": "{files} not here",
    "outside": "{files} of unknown origin",
    "changed": "CHANGED: {faults}, named {place}",
    "other signer": "they fit together, but are not by the coordinator that you stated",
    "by nobody": "nobody: no word here counts",
    "by another": "ANOTHER: {signer}, by its own word",
    "by stated": "{signer}, by the fingerprint that you stated",
    "by own word": "NOT SHOWN: {signer} signed, by their own word",
    "unsigned": "NOT SHOWN: nobody signed them",
    "not the run's": "{file}: is not the file that the run wrote",
    "not the archive's": "{file}: is not the file that the coordinator put into the archive",
    "not compared": "not here, so not compared: {files}",
}


def describe_files(integrity: str, *, missing: int, outside: int) -> str:
    """Returns the sentence on files without a fault, which ``integrity`` begins, with the numbers of other files."""
    missing_words = CHECK_WORDS["missing"].format(files=counted(missing, "file"))
    outside_words = CHECK_WORDS["outside"].format(files=counted(outside, "further file"))
    return "; ".join([integrity, *([missing_words] if missing else []), *([outside_words] if outside else [])])
