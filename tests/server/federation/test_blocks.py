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


def test_public_block_is_found_by_the_hash_of_its_bytes(journal):
    blocks = PublicBlocks(journal)
    identity = blocks.add(b"some block")
    assert identity == hashlib.sha256(b"some block").digest()
    assert blocks.add(b"some block") == identity
    assert blocks.get(identity) == b"some block"


def test_missing_public_block_raises_an_internal_error(journal):
    with raises(InternalError, "block-missing"):
        PublicBlocks(journal).get(b"\x07" * 32)


def test_published_name_keeps_its_first_bytes_when_published_again(tmp_path):
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


@pytest.mark.parametrize("finished_writes", [0, 1])
def test_run_killed_while_publishing_blocks_can_be_continued(journal, monkeypatch, finished_writes):
    """A name in the journal whose block is not there would end every continuation."""
    writes = [journal.put] * finished_writes

    def put_or_die(name, data):
        if not writes:
            raise OSError("no space left")
        writes.pop()(name, data)

    blocks = PublicBlocks(journal)
    with monkeypatch.context() as dying:
        dying.setattr(journal, "put", put_or_die)
        with pytest.raises(OSError, match="no space left"):
            blocks.published("vectors/one", lambda: b"as computed")
    assert blocks.get(blocks.published("vectors/one", lambda: b"as computed")) == b"as computed"
