"""Which of a party's records take part: a unit's cap is its own, and one unit more moves no other."""

import pytest

from undersong_client.records import PrivateRecords
from undersong_common.table import Table
from undersong_protocol.plan import Privacy

KEY = bytes(range(32))


def kept(texts, users, privacy):
    table = Table(tuple(texts), None, tuple(users))
    return set(PrivateRecords(table, (), privacy, key=KEY, embed=lambda _: pytest.fail("not asked for")).texts)


@pytest.mark.parametrize("unit", ["sample", "user"])
def test_one_unit_more_displaces_no_other_even_above_max_records(unit):
    privacy = Privacy(1.0, 1e-5, unit, 1 if unit == "sample" else 2, max_records=5)
    users = [f"patient {number // 3}" for number in range(30)]
    texts = [f"note {number}" for number in range(30)]
    before = kept(texts, users, privacy)
    after = kept([*texts, "another note"], [*users, "another patient"], privacy)
    assert after - before == {"another note"}
    assert before - after == set()


def test_a_user_keeps_at_most_its_cap_whatever_the_order_of_the_file():
    privacy = Privacy(1.0, 1e-5, "user", 2)
    texts, users = [f"note {number}" for number in range(9)], [f"patient {number % 3}" for number in range(9)]
    found = kept(texts, users, privacy)
    assert len(found) == 6
    assert kept(texts[::-1], users[::-1], privacy) == found
