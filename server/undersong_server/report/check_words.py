"""The words in which ``undersong verify`` and the page report.html judge the same files.

The page gets :data:`CHECK_WORDS` as JSON, because its script cannot call Python. Words in braces are filled in by both.
"""

from collections.abc import Mapping, Sequence

from undersong_common.printable import counted

CHECK_WORDS: Mapping[str, str] = {
    "whole": "whole: every file here is as it was written",
    "incomplete": "INCOMPLETE: {count} missing ({files}), the rest unchanged",
    "left out": "left out by the operator: {files}",
    "no corpus": "no file of the corpus is here, so nothing was checked about its texts",
    "outside": "{files} of unknown origin",
    "changed": "CHANGED: {faults}, named {place}",
    "also missing": "; {count} missing ({files})",
    "other signer": "they fit together, but are not by the coordinator that you stated",
    "by nobody": "nobody: no word here counts",
    "by another": "ANOTHER: {signer}, by its own word",
    "by stated": "{signer}, by the fingerprint that you stated",
    "by own word": "NOT SHOWN: {signer} signed, by its own word",
    "copied": "A fingerprint that is copied from report.html or another of these files proves nothing.",
    "nobody confirms": "Nobody here can be asked for the true fingerprint: you cannot find out who signed these files.",
    "unconfirmed": "; nobody here can confirm that fingerprint, and one copied from these files proves nothing",
    "unsigned": "NOT SHOWN: nobody signed them",
    "not the run's": "{file}: is not the file that the run wrote",
    "not the archive's": "{file}: is not the file that the coordinator put into the archive",
}


def describe_files(
    missing: Sequence[str], *, outside_count: int, left_out: str = "", lacks_corpus: bool = False
) -> str:
    """Returns the sentence on files without a fault.

    Args:
        missing: names of the files that are not here.
        outside_count: number of those that no signed file names.
        left_out: words on texts that the coordinator left out of the corpus afterwards; "" if it left out none.
        lacks_corpus: True if no file with rows of the corpus is here.
    """
    integrity = CHECK_WORDS["whole"]
    if missing:
        integrity = CHECK_WORDS["incomplete"].format(count=len(missing), files=", ".join(missing))
    if left_out:
        integrity = f"{integrity if missing else 'whole'}, but for {left_out}"
    outside_words = CHECK_WORDS["outside"].format(files=counted(outside_count, "further file"))
    corpus_words = [CHECK_WORDS["no corpus"]] if lacks_corpus else []
    return "; ".join([integrity, *corpus_words, *([outside_words] if outside_count else [])])
