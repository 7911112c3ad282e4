"""Privacy units in the words of the people who read them: a hospital's users are its patients."""

from __future__ import annotations


def unit_word(unit: str, user_field: str, count: int = 1) -> str:
    """The privacy unit, by the name of the column of user ids.

    >>> unit_word("user", "patient_id", 2), unit_word("user", "member"), unit_word("sample", "patient")
    ('patients', 'user', 'record')

    Where there is no such column, a hospital thinks of its patients.

    >>> unit_word("user", "")
    'patient'
    """
    person = "user" if user_field and "patient" not in user_field.lower() else "patient"
    word = {"sample": "record", "user": person}.get(unit, unit)
    if count == 1:
        return word
    return "parties" if word == "party" else f"{word}s"
