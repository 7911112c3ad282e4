"""The judged benchmark: invented data, cells that continue, paired figures, and a page that is filled by its marks."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import judged, judged_settings, judged_tables
from tests.doubles.parties import embed
from undersong_common.errors import ConfigurationError

PAGE = Path(__file__).parents[2] / "docs" / "results.md"


def cells(setting, method, values):
    return {
        (setting, method, seed): {
            **{"setting": setting, "method": method, "seed": seed, "rows": 10, "seconds": 1.0, "program": "one"},
            **{"panel": value, "words": value - 2, "head": value + 3, "mlp": value - 1},
            **{"macro_f1": value, "rarest_recall": value},
        }
        for seed, value in enumerate(values)
    }


@pytest.mark.heavy
def test_invented_reviews_use_words_by_their_stars_and_are_all_different():
    rows = judged_settings.invented_reviews(np.random.default_rng(0), 400)
    assert len({row["text"] for row in rows}) == 400
    dreadful, superb = judged_settings.DEGREES[0], judged_settings.DEGREES[-1]

    def share(stars, words):
        texts = [row["text"] for row in rows if row["label"] == stars]
        return np.mean([any(word in text for word in words) for text in texts])

    assert share("1 star", dreadful) > 0.8 > 0.2 > share("5 stars", dreadful)
    assert share("5 stars", superb) > 0.8 > 0.2 > share("1 star", superb)
    low = judged_settings.invented_reviews(np.random.default_rng(0), 400, shift=-0.8)
    assert sum(row["label"] == "5 stars" for row in low) < sum(row["label"] == "5 stars" for row in rows)


def test_missing_benchmark_data_folder_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="no such file"):
        judged_settings.build("mixed", tmp_path, tmp_path)


def test_differences_are_paired_by_seed_and_corrected_for_all_settings():
    found = {
        **cells("mixed", "undersong", [80.0, 82.0, 84.0]),
        **cells("mixed", "wasp", [79.0, 80.0, 81.0, 10.0]),  # the last seed has no partner
        **cells("weak", "undersong", [70.0, 72.0, 71.0]),
        **cells("weak", "wasp", [71.0, 71.0, 71.0]),
    }
    mixed, weak = judged_tables.pair_by_seed(found, "undersong", "wasp", ["mixed", "weak", "stars"], range(4))
    assert (mixed.seeds, mixed.difference, weak.difference) == (3, pytest.approx(2.0), pytest.approx(0.0))
    half = 4.302653 / 3**0.5  # Student's, two degrees of freedom; the differences deviate by 1
    assert (mixed.low, mixed.high) == (pytest.approx(2 - half, abs=1e-5), pytest.approx(2 + half, abs=1e-5))
    assert mixed.holm == pytest.approx(2 * mixed.chance)
    assert weak.holm == 1.0
    assert mixed.worst == pytest.approx(2.0)


def test_pooled_gain_counts_each_setting_up_to_the_cap():
    rows = [
        judged_tables.Paired(name, 8, ours, 0.0, 0, 0, 1, {}, 0, (1, 1)) for name, ours in (("a", 40.0), ("b", -2.0))
    ]
    assert judged_tables.Pooled.of(rows).mean == 1.0


def test_results_page_has_every_mark_and_can_be_filled_again(tmp_path):
    (tmp_path / "pictures").mkdir()
    page = tmp_path / "results.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    rows = []
    for number, method in enumerate(judged.METHODS):
        for setting in ("mixed", "stars"):
            rows += cells(setting, method, [70.0 + number, 71.0 - number]).values()
    for _ in range(2):
        judged_tables.fill(page, rows, judged.METHODS, range(2))
        text = page.read_text(encoding="utf-8")
        assert text.count("| mixed * |") == 3  # a row of settings, of scores and of differences
        assert "`undersong` 30 of 34 (weak," in text
        # of the settings that served to choose nothing, pairs of all seeds; a sum without pairs has no figure
        assert "| the label histogram | `mixture+labels` - `mixture` | 2 | **+0.00** |" in text
        assert "| the verdict | `undersong` - `undersong~verdict` | 0 | - | - |" in text
    assert "<svg" in (tmp_path / "pictures" / "judged.svg").read_text(encoding="utf-8")
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="no mark"):
        judged_tables.fill(page, rows, judged.METHODS, range(2))


@pytest.mark.slow
def test_interrupted_measurement_continues_and_judges_each_text_once(tmp_path, monkeypatch):
    monkeypatch.setitem(
        judged_settings.SETTINGS, "stars", lambda _data: judged_settings.stars(_data)._replace(samples=100)
    )
    path = judged_settings.build("stars", tmp_path, tmp_path)
    chosen = ["cleaned-mixture", "undersong", "best-single", "private-only"]
    for methods in (chosen[:1], chosen, chosen):
        judged.measure({"stars": path}, methods, [5], tmp_path, embed)
    rows = judged_settings.json_lines(tmp_path / "cells.jsonl")
    table = [row for row in rows if row["seed"] == 5]
    assert [row["method"] for row in table] == chosen
    assert {row["method"] for row in rows if row["seed"] == judged.CHOOSING_SEED} == {
        f"single:{name}" for name in ("alike", "brief", "strict", "extreme")
    }
    assert len(rows) == 8
    assert all(0 < row["panel"] <= 100 and row["rows"] <= 100 for row in rows)
