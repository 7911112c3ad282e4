"""How values are shown: commands as such, numbers beside their units, and nothing as markup."""

from undersong_common.pages.frame import environment


def shown(template, value):
    return environment(()).from_string(template).render(value=value)


def test_commands_are_shown_as_code_and_hostile_words_as_text():
    hostile = "type `undersong run <b>` now, <i>\x1b[2J</i> or ` alone"
    expected = r"type <code>undersong run &lt;b&gt;</code> now, &lt;i&gt;\x1b[2J&lt;/i&gt; or ` alone"
    assert shown("{{ value|commands }}", hostile) == expected


def test_shown_number_is_not_separated_from_its_unit():
    assert shown("{{ value|duration }}", 200) == "3\xa0min 20\xa0s"
    assert shown('{{ value|plural("party", "parties") }}', 1) == "1 party"
