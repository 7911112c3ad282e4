"""Sentences on what leaves a hospital beside its numbers, and on how many other hospitals' numbers hide its own.

They sum up, for a person who decides, the messages that :mod:`undersong_client.operations.outbox` lists.
"""

from undersong_client.consent.sheet import Sheet, Surroundings
from undersong_common.printable import counted

TOLD_WORDS = (
    "The operator {reads} who your hospital is (its name, and the public key by which its signatures are checked);"
    " which versions of program and embedding model (which measures how alike texts are) it runs; when it is"
    " connected, and when it approves or withdraws; a Reject, a Withdraw and what your policy refuses, with the"
    " reason; what is left of your budget, and your policy, only if your hospital shares them{shares}. At the end"
    " your software signs a receipt (for which sums of this run your numbers left, in how many attempts, and what"
    " your budget was charged for each). The operator publishes it. None of these holds a figure of your records,"
    " unless somebody here writes one into a reason."
)


def told_words(sheet: Sheet, beside: Surroundings) -> str:
    """Returns what the operator reads of this hospital beside the numbers, the receipt included."""
    shares_words = f" (now it shares {beside.shared})" if beside.shared else ""
    return TOLD_WORDS.format(reads="reads" if sheet.ended is None else "read", shares=shares_words)


def left_alone_words(sheet: Sheet) -> str:
    """Returns how many others still hide this hospital's numbers if some help the operator; "" if no sum has others."""
    if sheet.others < 1:
        return ""
    alone_sentence = "If all others in a sum help, yours are left alone, blurred by your own noise."
    shielding_hospitals = sheet.others - sheet.colluders
    if not sheet.colluders or shielding_hospitals < 1:
        return f"A hospital that helps the operator can subtract its own numbers from an opened sum. {alone_sentence}"
    return (
        "A hospital that helps the operator can subtract its own numbers from an opened sum. While at most"
        f" {sheet.colluders} {'does' if sheet.colluders == 1 else 'do'}, those of at least"
        f" {counted(shielding_hospitals, 'other hospital')} stay with yours. {alone_sentence}"
    )
