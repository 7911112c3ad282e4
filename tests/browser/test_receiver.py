"""A receiver opens report.html in a browser, alone and offline: it checks files that are dropped on it."""

import hashlib
import json
import shutil
import zipfile

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.doubles.chromium import WIDTHS
from tests.doubles.example_console import add_result
from tests.server.report.test_report import SCORED, run
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.operations import releases
from undersong_server.release.files import KEY, ROWS_NAMES, Signer, sign_archive
from undersong_server.release.verify import verify
from undersong_server.report.check_words import CHECK_WORDS
from undersong_server.report.html import render_html
from undersong_server.runs.task import PublicationSection

pytestmark = pytest.mark.slow
WITHOUT_ED25519 = """crypto.subtle.importKey = async () => {
  throw new DOMException("Algorithm: Unrecognized name", "NotSupportedError");
}"""
WITHOUT_DIGEST = "Object.defineProperty(window, 'crypto', {value: undefined})"


ONTO = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const ticks = [...svg.querySelectorAll('text.tick:not(.left)')].map(text => text.getBoundingClientRect());
  return ticks.slice(1).filter((here, place) => Math.abs(here.top - ticks[place].top) < 2
    && here.left < ticks[place].right && here.right > ticks[place].left).map(() => 1);
}).length"""
LONG = "a generator of a very long name that a vendor has chosen for its model, version 20260101"
REPORTS = {
    f"{count} generators, {rounds} rounds{', long names' if long else ''}": {
        "generators": tuple(f"{LONG} {n}" if long else f"model {n}" for n in range(count)),
        "weights": tuple((1 / count,) * count for _ in range(rounds)),
        "weight_errors": (0.1,) * count,
    }
    for count, rounds, long in [(1, 1, False), (2, 1, False), (2, 10, True), (6, 10, False), (6, 30, True)]
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", REPORTS)
def test_no_text_of_a_report_chart_is_cut_or_overlaps_another(window, tmp_path, shape, width):
    (tmp_path / "report.html").write_text(render_html(run(120, **{**SCORED, **REPORTS[shape]})))
    reader = window("file://", width=WIDTHS[width])
    reader.go(str(tmp_path / "report.html"))
    reader.unfold()
    assert reader.page.evaluate(ONTO) == 0
    reader.check(f"{shape}, {width}")


def test_specialist_parts_of_the_report_are_folded_on_phones_and_printed(window, tmp_path):
    (tmp_path / "report.html").write_text(render_html(run(120, **SCORED)))
    reader = window("file://", width=WIDTHS["narrow"])
    reader.go(str(tmp_path / "report.html"))
    open_parts = (
        "[...document.querySelectorAll('main h2')].filter(each => !each.closest('summary')).map(each => each.id)"
    )
    assert reader.page.evaluate(open_parts) == ["what", "may-i", "promise", "good", "train", "check"]
    reader.page.locator("a[href='#privacy']").click()
    reader.until("document.getElementById('privacy').checkVisibility()")
    reader.page.evaluate("document.getElementById('privacy').closest('details').open = false")
    settings = (
        "document.querySelector('section[aria-labelledby=settings] dl').checkVisibility({contentVisibilityAuto: true})"
    )
    assert not reader.page.evaluate(settings)
    height = "document.documentElement.scrollHeight"
    folded = reader.page.evaluate(height)
    reader.page.emulate_media(media="print")
    printed = reader.page.evaluate(height)
    reader.page.emulate_media(media="screen")
    assert reader.unfold().page.evaluate(height) > 2 * folded
    assert printed > 2 * folded


@pytest.mark.parametrize("width", WIDTHS)
def test_no_text_of_the_consoles_charts_is_cut(console, window, width):
    operator = window(console.address, width=WIDTHS[width]).enter(console.link(f"charts-{width}"))
    for name in ("spring", "autumn"):  # one that runs, and one that is only planned
        operator.go(f"/runs/one/triage%20{name}")
        operator.page.locator("svg text").first.wait_for()
        operator.check(f"charts of {name}, {width}")
        assert operator.page.evaluate(ONTO) == 0


@pytest.fixture(scope="module")
def published(coordinator, tmp_path_factory):
    add_result(coordinator, tmp_path_factory.mktemp("result"), name="triage received", contact="data@clinics.org")
    return CoordinatorHome(coordinator).run("triage received").output


@pytest.fixture(params=[False, True], ids=["browser's digest", "own code"])
def reader(published, window, request):
    """The report in a browser, which digests files by itself or leaves it to the page's own code."""
    opened = window("file://")
    if request.param:
        opened.page.add_init_script(WITHOUT_DIGEST)
    opened.go(str(published / "report.html"))
    return opened


STATUS = ".drop [role=status]"


def checked(reader, paths):
    reader.page.evaluate("document.getElementById('verdict').textContent = ''")
    reader.page.locator("#files").set_input_files([str(path) for path in paths])
    reader.until("document.getElementById('verdict').textContent")
    return reader.page.locator(STATUS).inner_text()


def colour_of(reader):
    return reader.page.locator("#verdict").get_attribute("class")


def in_words(said):
    """The page's first line as `undersong verify` has it, which names faults above its conclusion."""
    return said.partition(" By: ")[0].replace("named below", "named above")


def test_report_judges_files_dropped_on_it_in_the_words_of_verify(published, coordinator, reader, tmp_path):
    true = CoordinatorHome(coordinator).authority().fingerprint
    files = [path for path in published.iterdir() if path.is_file()]
    reader.page.locator("#told").fill(true)
    whole = checked(reader, files)
    assert in_words(whole) == verify(published, fingerprint=true).conclusion()[0]
    assert f"{len(files) - 1} files compared and found as written; manifest.json held the hashes" in whole
    folder = tmp_path / "copy"
    shutil.copytree(published, folder)
    (folder / "README.md").unlink()
    said = checked(reader, [path for path in files if path.name != "README.md"])
    assert in_words(said) == verify(folder, fingerprint=true).conclusion()[0]
    assert in_words(said) == "Files: INCOMPLETE: 1 missing (README.md), the rest unchanged."
    assert colour_of(reader) == "promise open"
    for name in ROWS_NAMES:
        (folder / name).unlink()
    said = checked(reader, [path for path in folder.iterdir() if path.is_file()])
    assert in_words(said) == verify(folder, fingerprint=true).conclusion()[0]
    assert CHECK_WORDS["no corpus"] in said
    (folder / "synthetic.jsonl").write_bytes((published / "synthetic.jsonl").read_bytes() + b" ")
    said = checked(reader, [path for path in folder.iterdir() if path.is_file()])
    assert in_words(said) == verify(folder, fingerprint=true).conclusion()[0]
    assert f"CHANGED: 1 fault, named below; 2 missing ({ROWS_NAMES[1]}, README.md)" in said
    assert "synthetic.jsonl: is not the file that the run wrote" in said
    assert "has signed" not in said
    assert colour_of(reader) == "promise none"
    reader.check("the report with checked files")


def test_report_asks_for_the_files_that_its_check_still_needs(published, reader, tmp_path):
    files = [path for path in published.iterdir() if path.is_file()]
    said = checked(reader, [path for path in files if path.name not in ("manifest.json", "README.md")])
    assert "Add manifest.json" in said
    assert "whole" not in said
    said = checked(reader, [published / "manifest.json"])
    assert "Nothing was compared yet" in said
    other_plan = tmp_path / "manifest.json"
    other_plan.write_text((published / "manifest.json").read_text().replace('"epsilon": ', '"epsilon": 1', 1))
    said = checked(reader, [*(path for path in files if path.name != "manifest.json"), other_plan])
    assert "Files: CHANGED: " in said
    assert "manifest.json: states another plan" in said


def test_report_compares_the_publisher_s_key_with_a_typed_fingerprint(published, coordinator, reader):
    true = CoordinatorHome(coordinator).authority().fingerprint
    other = f"{'0' if true[0] != '0' else '1'}{true[1:]}"
    files = [path for path in published.iterdir() if path.is_file()]
    assert f"manifest.json names the key {true}. {CHECK_WORDS['copied']}" in checked(reader, files)
    assert colour_of(reader) == "promise open"
    typed = reader.page.locator("#told")
    for told, said in (
        (true[:19], "4 of the fingerprint's 8 groups are typed"),
        (true[:21], "4 of the fingerprint's 8 groups are typed"),
        (true[:-1], "7 of the fingerprint's 8 groups are typed"),
        (true.upper().replace("-", " "), f"key {true}"),
        (other, "By: ANOTHER: the coordinator, by its own word."),
    ):
        typed.fill(told)  # without leaving the box
        reader.until(f'document.querySelector("{STATUS}").innerText.includes("{said}")')
    assert in_words(reader.page.locator(STATUS).inner_text()) == verify(published, fingerprint=other).conclusion()[0]
    assert colour_of(reader) == "promise none"
    reader.check("the report with another maker")


@pytest.mark.parametrize("has_ed25519", [True, False])
def test_report_checks_the_publisher_s_signature_if_the_browser_can(published, coordinator, window, has_ed25519):
    true = CoordinatorHome(coordinator).authority().fingerprint
    files = [path for path in published.iterdir() if path.is_file()]
    reader = window("file://")
    if not has_ed25519:
        reader.page.add_init_script(WITHOUT_ED25519)
    reader.go(str(published / "report.html"))
    reader.page.locator("#told").fill(true)
    said = checked(reader, files)
    if has_ed25519:
        assert "By: the coordinator, by the fingerprint that you stated." in said
        assert f"Its key {true} has signed manifest.json." in said
        assert "cannot check" not in said
        assert colour_of(reader) == "promise kept"
    else:
        assert "By: NOT SHOWN: " in said
        assert "This browser cannot check its signature; this command does: undersong verify . --fingerprint" in said


def test_report_s_search_says_how_many_texts_it_covers(window, tmp_path):
    (tmp_path / "report.html").write_text(render_html(run(400, **SCORED)))
    reader = window("file://")
    reader.go(str(tmp_path / "report.html"))
    reader.unfold()
    reader.page.locator("#f-text").fill("no text has these words")
    reader.until("document.getElementById('count').textContent.startsWith('No text here fits.')")
    searched = "Searched: 300 of the corpus's 400 texts, from every label, generator and round."
    assert reader.page.locator("#count").inner_text().endswith(searched)


def test_report_without_a_real_contact_compares_no_fingerprint(published, coordinator, window, tmp_path):
    true = CoordinatorHome(coordinator).authority().fingerprint
    example = PublicationSection(contact="data@clinics.example")
    (tmp_path / "report.html").write_text(render_html(run(publisher=("clinics", true), publication=example)))
    rows = tmp_path / "synthetic.jsonl"
    rows.write_text('{"text": "a", "label": "b"}')
    value = json.loads((published / "manifest.json").read_text())
    del value[KEY]
    digest = hashlib.sha256(rows.read_bytes()).hexdigest()
    authority = CoordinatorHome(coordinator).authority()
    signed = Signer("clinics", authority, {}).sign({**value, "files": {rows.name: digest}})
    (tmp_path / "manifest.json").write_text(json.dumps(signed, indent=2, ensure_ascii=False) + "\n")
    reader = window("file://")
    reader.go(str(tmp_path / "report.html"))
    assert reader.page.locator("#told").count() == 0
    said = checked(reader, [rows, tmp_path / "manifest.json"])
    assert f"Files: {CHECK_WORDS['whole']}. By: NOT SHOWN" in said
    assert CHECK_WORDS["nobody confirms"] in said
    assert colour_of(reader) == "promise open"


@pytest.mark.parametrize("part", ["files", "signature", "archive.json"])
def test_report_reports_a_forged_signature_whatever_was_typed(published, coordinator, window, tmp_path, part):
    files = {path.name: path for path in published.iterdir() if path.is_file()}
    manifest = json.loads(files["manifest.json"].read_text())
    if part == "archive.json":
        card = tmp_path / "README.md"
        card.write_text("another card")
        forged = tmp_path / part
        forged.write_text(
            sign_archive(
                Ed25519PrivateKey.generate(), files["manifest.json"].read_bytes(), {"README.md": "another card"}
            )
        )
        files |= {"README.md": card, part: forged}
    else:
        if part == "files":
            manifest["files"]["README.md"] = "0" * 64
        else:
            signature = manifest["coordinator"]["signature"]
            manifest["coordinator"]["signature"] = f"{'0' if signature[0] != '0' else '1'}{signature[1:]}"
        forged = tmp_path / "manifest.json"
        forged.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
        files["manifest.json"] = forged
    reader = window("file://")
    reader.go(str(published / "report.html"))
    reader.page.locator("#told").fill(CoordinatorHome(coordinator).authority().fingerprint)
    said = checked(reader, list(files.values()))
    assert said.startswith("Files: CHANGED: ")
    assert "FORGED: " in said
    assert "whole" not in said


def test_report_recognises_the_files_of_the_console_s_archive(published, coordinator, window, tmp_path):
    releases.export(coordinator, "triage received", tmp_path / "all.zip")
    with zipfile.ZipFile(tmp_path / "all.zip") as packed:
        packed.extractall(tmp_path)
    unpacked = tmp_path / "triage received"
    reader = window("file://")
    reader.go(str(unpacked / "report.html"))
    reader.page.locator("#told").fill(CoordinatorHome(coordinator).authority().fingerprint)
    said = checked(reader, list(unpacked.iterdir()))
    assert said.startswith(f"Files: {CHECK_WORDS['whole']}.")
    assert "manifest.json and archive.json held the hashes" in said
    assert "has signed manifest.json" in said
    assert "unknown origin" not in said


def test_the_report_names_a_file_that_the_operator_left_out(published, coordinator, window, tmp_path):
    authority = CoordinatorHome(coordinator).authority()
    manifest = json.loads((published / "manifest.json").read_text())
    del manifest[KEY]
    manifest["files"]["set-aside.jsonl"] = "0" * 64
    signed = Signer("clinics", authority, {}).sign(manifest)
    (tmp_path / "manifest.json").write_text(json.dumps(signed, indent=2, ensure_ascii=False) + "\n")
    signed_bytes = (tmp_path / "manifest.json").read_bytes()
    archive = sign_archive(authority.signing_key, signed_bytes, {}, left_out_files=["set-aside.jsonl"])
    (tmp_path / "archive.json").write_text(archive)
    files = {path.name: path for path in (*published.iterdir(), *tmp_path.iterdir()) if path.is_file()}
    reader = window("file://")
    reader.go(str(published / "report.html"))
    reader.page.locator("#told").fill(authority.fingerprint)
    said = checked(reader, list(files.values()))
    assert said.startswith(f"Files: {CHECK_WORDS['whole']}.")
    assert CHECK_WORDS["left out"].format(files="set-aside.jsonl") in said
    del files["archive.json"]
    assert checked(reader, list(files.values())).startswith("Files: INCOMPLETE: 1 missing (set-aside.jsonl)")


@pytest.mark.parametrize("length", [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000])
def test_report_script_s_digest_equals_the_browser_s_at_every_padding(published, window, tmp_path, length):

    reader = window("file://")
    reader.page.add_init_script(WITHOUT_DIGEST)
    reader.go(str(published / "report.html"))
    content = bytes(place * 7 % 256 for place in range(length))
    (tmp_path / "a.bin").write_bytes(content)
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {"a.bin": hashlib.sha256(content).hexdigest()}}))
    reader.page.evaluate("document.getElementById('drop').dataset.statement = ''")  # of another manifest.json
    assert "1 file compared and found as written" in checked(reader, [tmp_path / "a.bin", tmp_path / "manifest.json"])
