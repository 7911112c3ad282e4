"""Public blocks: kept once under their content, published once under their name, answered after a restart."""

import hashlib

import pytest

from tests.doubles.coded import raises
from undersong_common.errors import InternalError
from undersong_server.database.journal import Journal
from undersong_server.federation.exchange import PublicBlocks


@pytest.fixture
def journal(tmp_path):
    opened = Journal(tmp_path / "journal.sqlite")
    yield opened
    opened.close()


def test_a_block_is_found_by_the_hash_of_its_bytes(journal):
    blocks = PublicBlocks(journal)
    identity = blocks.add(b"some block")
    assert identity == hashlib.sha256(b"some block").digest()
    assert blocks.add(b"some block") == identity
    assert blocks.get(identity) == b"some block"


def test_a_block_that_nobody_added_is_our_bug(journal):
    with raises(InternalError, "block-missing"):
        PublicBlocks(journal).get(b"\x07" * 32)


def test_a_name_keeps_the_bytes_that_were_published_first(tmp_path):
    path = tmp_path / "journal.sqlite"
    first = Journal(path)
    identity = PublicBlocks(first).published("vectors/one", lambda: b"as computed here")
    first.close()
    again = Journal(path)
    blocks = PublicBlocks(again)
    # Another machine might compute another last bit.
    assert blocks.published("vectors/one", lambda: b"as computed elsewhere") == identity
    assert blocks.get(identity) == b"as computed here"
    assert blocks.published("vectors/two", lambda: b"as computed elsewhere") != identity
    again.close()
