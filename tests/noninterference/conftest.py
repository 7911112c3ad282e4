"""The copies of a party that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from tests.noninterference.hospital import MakePair, pairs


@pytest.fixture(scope="module")  # while it stands, the words of plans are others in the whole process
def make_pair() -> Iterator[MakePair]:
    with pairs() as make:
        yield make
