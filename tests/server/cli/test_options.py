"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError
from undersong_server.cli.options import with_cache
from undersong_server.runs import task as tasks

BANKING = Path(__file__).parents[3] / "benchmarks" / "tasks" / "banking10.toml"
REVIEWS = BANKING.with_name("movie_reviews.toml")


def test_cache_option_applies_to_endpoints_without_their_own_cache(tmp_path: Path) -> None:
    given = ["generators.0.cache='own'"]
    assignments = with_cache(BANKING, given, tmp_path / 'a "cache"')
    caches = [getattr(each, "cache", None) for each in tasks.load(BANKING, assignments).generators]
    assert caches == ["own", str(tmp_path / 'a "cache"')]
    assert with_cache(BANKING, given, None) == given


def test_cache_option_without_any_endpoint_is_refused(tmp_path: Path) -> None:
    with raises(ConfigurationError, "no-endpoint"):
        with_cache(REVIEWS, [], tmp_path / "cache")
