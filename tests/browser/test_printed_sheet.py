"""The officer's sheet on paper: who asks what and for what, the risk and the choice, on half of an A4 page."""

import re
import time
from dataclasses import replace

import pytest

from tests.doubles.authority import Authority
from tests.doubles.hospitals import CLINIC
from tests.doubles.party_home import HashedEmbedder, command, joined, write_notes
from undersong_client import keys
from undersong_client.consent.approvals import Proposals
from undersong_client.consent.preview import CONTROLLER, sheet_page
from undersong_client.home import PartyHome
from undersong_client.operations import runs
from undersong_common.models.embedding import Embedder
from undersong_common.privacy.accounting import Gaussian
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Charge
from undersong_common.program.printed_page import PrintedPage
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.words import WRITTEN_BEFORE
from undersong_protocol.secagg.parameters import Member
from undersong_server.runs import task as tasks
from undersong_server.runs.planning import plan_run

pytestmark = pytest.mark.slow

OTHERS = ("beta", "delta", "gamma", "omega")
# The margins of a whole page and half of its height: 1 cm + 13.85 cm + 1 cm.
HALF_A4 = "@page { size: 210mm 158.5mm !important; margin: 1cm !important }"
CUT_AFTER = """count => [...document.querySelectorAll('main > :not(h1, .made)')]
    .slice(count).forEach(part => part.remove())"""
LONG_NAME = (
    "Example Alliance of Paediatric and General Hospitals of the Northern Ranges (Dr Mara Holm, data protection,"
    " 0123 456 78, mara.holm@alliance.example)"
)


@pytest.fixture(scope="module")
def previewed(tmp_path_factory):
    """The preview of a run by the default method at a hospital that took part in another one."""
    folder = tmp_path_factory.mktemp("printed")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", str(folder / "state"))
        patched.setattr(Embedder, "load", lambda *_: HashedEmbedder())
        planned = plan_run(tasks.load(CLINIC / "task.toml", ["privacy.epsilon=1.5"]))
        labels = planned.task.task.labels
        home = joined(folder, Authority(), notes=write_notes(folder / "notes.jsonl", 360, labels))
        command("policy", "set", "--minimum-parties", 4, "--home", home)
        winter = Charge("winter", "00" * 32, "votes", 0, (Gaussian(4.0),), alone=(Gaussian(2.0),))
        ledger = Ledger.read(home / "ledger.jsonl")
        ledger.charge(winter, at=5.0)
        ledger.send(winter, "aa" * 32, at=5.0)
        own = Member("alpha", keys.identity(PartyHome(home)).public_key().public_bytes_raw())
        roster = (own, *(Member(name, bytes([number]) * 32) for number, name in enumerate(OTHERS, 2)))
        task = {
            "name": planned.task.task.name,
            "labels": list(labels),
            "purpose": planned.task.task.purpose,
            "operator": "Example Alliance of Clinics",
            "contact": "Mara Holm, 0123 456 78, mara@alliance.example",
            "generators": ["handbook (a language model, run by the operator)"],
        }
        manifest = Manifest("spring", task, "undersong", Embedder.load().fingerprint, roster, planned.plan)
        Proposals(PartyHome(home)).receive(manifest, at=time.time())
        return runs.preview(home, "spring", checkpoints=home / "checkpoints")


def with_long_words(sheet):
    """The sheet of a long name of the operator, thirty labels, two kinds of writers, and one other that may lie."""
    writers = (*sheet.task.generators, f"pool ({WRITTEN_BEFORE})")
    task = replace(sheet.task, labels=tuple(f"department {number}" for number in range(30)), generators=writers)
    return replace(sheet, task=task, operator=LONG_NAME, colluders=0, others=1)


VARIANTS = {
    "as planned": lambda sheet: sheet,
    "long words": with_long_words,
    "two people": lambda sheet: replace(sheet, two_people=True),
    "cases": lambda sheet: replace(sheet, privacy=replace(sheet.privacy, unit_word="case")),
}


def half_pages(window, page, count):
    """The number of half A4 pages that the browser prints of a page's title and first ``count`` parts."""
    opened = window("about:blank").page
    opened.set_content(page.html(at="2026-03-01 10:00 UTC"))
    opened.evaluate(CUT_AFTER, count)
    opened.add_style_tag(content=HALF_A4)
    return len(re.findall(rb"/Type\s*/Page\b", opened.pdf(prefer_css_page_size=True)))


RULES = "() => [...document.styleSheets].flatMap(sheet => [...sheet.cssRules]).map(rule => rule.cssText).join(' ')"


def test_every_printed_page_has_run_nine_words_and_its_number(window, previewed):
    opened = window("about:blank").page
    opened.set_content(previewed.page.html(at="2026-03-01 10:00 UTC"))
    run_words = f"Run 'spring', nine words: {previewed.sheet.words}"
    foot = rf"@bottom-center \{{ content: \"{run_words}\" \"; page \" counter\(page\)"
    assert re.search(foot, opened.evaluate(RULES))
    # A browser that knows no such foot prints the words beside the signature, all on one page.
    signature, decision = opened.locator("p.signature").all_inner_texts()
    assert signature.startswith(f"Run 'spring', nine words: {previewed.sheet.words}. Advice for alpha: approve")
    assert decision == CONTROLLER
    assert opened.locator("div.signature").count() == 2
    assert "how patients are informed" in " ".join(opened.locator("p.entry").all_inner_texts())


def test_run_name_with_any_character_cannot_end_the_style_sheet(window):
    page = PrintedPage("Title", (), footer="</style>\"'\\ }} name")
    opened = window("about:blank").page
    opened.set_content(page.html(at="now"))
    assert opened.locator("h1").inner_text() == "Title"
    assert 'name" "; page "' in opened.evaluate(RULES)


@pytest.mark.parametrize("variant", VARIANTS)
def test_sheet_s_short_part_prints_on_half_an_a4_page(window, previewed, variant):
    page = sheet_page(VARIANTS[variant](previewed.sheet), previewed.surroundings)
    titles = [section.title for section in page.sections]
    assert titles[:2] == ["What is asked", "In short"]
    assert page.sections[1].figures[-1][0] == "What next"
    assert half_pages(window, page, 2) == 1
    assert half_pages(window, page, 3) == 2  # the table that follows has no room left
