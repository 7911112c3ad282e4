import datetime
import decimal
import unicodedata
import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError
from undersong_common.text.patient_ids import KINDS, Choice, PatientId, find_look_alikes, look_alike_kinds, patient_id

UUID = "0f2c6f2e-6e0b-4f53-9d6f-2f6f6f6f6f6f"
INVISIBLE = "\u200b\ufeff\u200e\u00ad\x00\x1f\u2060"
SPACES = " \t\n\u00a0\u2003\u3000\x85"


def places(*values):
    return {patient_id(value): f"row {number}" for number, value in enumerate(values, start=1)}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (7.0, "7"),
        (-0.0, "0"),
        (decimal.Decimal("7.00"), "7"),
        (np.int64(7), "7"),
        (np.float32(7), "7"),
        (np.str_("7"), "7"),
        (uuid.UUID(UUID), UUID),
        (UUID.upper(), UUID),
        (f"URN:UUID:{UUID.upper()}", UUID),
        (f"Patient/{UUID.upper()}", UUID),
        ("  a\t b\u00a0", "a b"),
        ("a\u200b \u00ad b", "a b"),
        ("e\u200d\u0301", "é"),
        ("Patient/7", "7"),
        (" Patient/7 ", "7"),
        ("https://ehr.example/fhir/Patient/7/_history/3", "7"),
        ("https://ehr.example/fhir/Patient/7/?_format=json", "7"),
        ("Patient/Patient/7", "7"),
        ("Patient?identifier=http://h/mrn%7C0042", "http://h/mrn|0042"),
        ("7.0", "7.0"),
        ("007", "007"),
        ("urn:uuid:7", "urn:uuid:7"),
    ],
)
def test_spellings_and_types_that_surely_mean_one_id_give_one_patient(value, text):
    identity = patient_id(value)
    assert identity.text == text
    assert patient_id(identity) is identity


@pytest.mark.parametrize(
    "value",
    [None, float("nan"), decimal.Decimal("NaN"), np.datetime64("NaT"), "", " \u200b ", "Patient/", "Patient/null"]
    + [word.upper() for word in ("null", "(null)", "\\N", "nil", "none", "nan", "nat", "<na>", "na", "n/a", "#n/a")]
    + ["#REF!", "#DIV/0!", "#NAME?", "#BEZUG!", "#NV", "-", "--", "?", "."]
    + ["---", "\u2014", "########", "''", '""', "***", "\u2800", "Patient/--", "Patient?identifier=mrn%7C---"],
)
def test_words_for_missing_values_and_signs_alone_are_no_patient_id(value):
    assert patient_id(value) is None


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (True, "cast"),
        (np.bool_(True), "cast"),
        (7.5, "cast"),
        (float("inf"), "cast"),
        (float(2**53), "cast"),
        (decimal.Decimal("Infinity"), "cast"),
        (10**900, "cast"),
        (b"7", "cast"),
        (datetime.date(2024, 1, 1), "cast"),
        ({"reference": "Patient/Secret"}, "patient.reference"),
        (["Secret"], "patient.reference"),
        ("1.23457E+11", "export it again"),
        ("1,23457E+15", "export it again"),
        ("1E+12", "export it again"),
        (" -9.9E+10", "export it again"),
        ("Group/Secret", "leave such rows out"),
        ("https://ehr.example/fhir/Device/1", "leave such rows out"),
    ],
)
def test_ids_of_other_types_are_refused_without_their_content(value, remedy):
    with raises(ConfigurationError, "no-id") as caught:
        patient_id(value)
    assert remedy in caught.value.remedy
    assert "Secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["1.2E+03", "1.23456789012E+11", "12E+11", "1E12", "0012E45", "1.5E+11x", "1.5e+11"])
def test_exact_exponent_numbers_and_codes_with_an_e_are_patient_ids(text):
    assert patient_id(text).text == text


@given(st.text(min_size=1, max_size=12))
def test_normal_form_of_a_patient_id_is_stable(text):
    try:
        identity = patient_id(text)
    except ConfigurationError:
        return
    if identity is not None and not identity.is_identifier:
        assert patient_id(identity.name) in (PatientId(identity.name), None) or "/" in identity.name
        unit = Choice(frozenset(KINDS)).unit(identity)
        assert Choice(frozenset(KINDS)).unit(PatientId(unit)) == unit


@given(
    st.text("abcXYZéöü0123456789_", min_size=2, max_size=10).filter(lambda text: patient_id(text) is not None),
    st.integers(0, 10),
    st.text(INVISIBLE, max_size=3),
    st.text(SPACES, max_size=3),
    st.sampled_from(["NFC", "NFD"]),
    st.sampled_from(["{}", "Patient/{}", "https://ehr.example/fhir/Patient/{}", "Patient/{}/_history/2"]),
)
def test_invisible_characters_and_unicode_forms_change_no_id(name, position, invisible, space, form, reference):
    written = unicodedata.normalize(form, name[:position] + invisible + name[position:])
    assert patient_id(space + reference.format(written) + space).text == patient_id(name).text


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("one", "other", "kinds"),
    [
        ("42", "0042", ("zeros",)),
        ("PAT-0042", "PAT-42", ("zeros",)),
        ("42", "42.0", ("decimals",)),
        ("42", "42,00", ("decimals",)),
        ("p7", "P7", ("case",)),
        ("strasse", "straße", ("case",)),
        ("123", "１２３", ("width",)),
        ("12 3", "12-3", ("spaces",)),
        (UUID, UUID.replace("-", ""), ("spaces",)),
        ("123", "'123'", ("quotes",)),
        ("123", '="123"', ("quotes",)),
        (UUID, "{" + UUID + "}", ("quotes",)),
        ("123", "+123", ("numbers",)),
        ("718", "-718", ("numbers",)),
        ("718", "- 718", ("spaces", "numbers")),
        ("718", "\u2212718", ("numbers",)),
        ("+718", "\u2013718", ("numbers",)),
        ("1200", "-1.2E+03", ("numbers",)),
        ("718", "-0718", ("numbers", "zeros")),
        ("ab", "-ab", ("spaces",)),
        ("71-8", "71\u22128", ("spaces",)),
        ("718", "718-", ("spaces",)),
        ("718", "(718)", ("quotes",)),
        ("718", "71.8", ()),
        ("718", "71_8", ()),
        ("1200", "1.2E+03", ("numbers",)),
        ("1", "patient/1", ("bases",)),
        ("1", "urn:uuid:1", ("bases",)),
        ("http://a/Patient/1", "http://b/Patient/1", ("bases",)),
        ("42", "'0042'", ("quotes", "zeros")),
        ("a1", "A 01", ("spaces", "zeros", "case")),
        ("123", "123,", ()),
        ("1.5", "1.05", ()),
        ("2024/17", "17", ()),
        ("-7", "7.5", ()),
        ("1E-02", "1", ()),
    ],
)
def test_look_alike_ids_are_explained_by_the_fewest_kinds_of_difference(one, other, kinds):
    findings = find_look_alikes(places(one, other), Choice())
    assert [found.kinds for found in findings] == ([kinds] if kinds else [])
    if kinds:
        assert findings[0].count == 1
        assert findings[0].places == (("row 1", "row 2"),)
        ids = [patient_id(value) for value in (one, other)]
        same, apart = Choice(same=frozenset(kinds)), Choice(other=frozenset(kinds))
        for choice, units in ((same, 1), (apart, 2)):
            assert find_look_alikes(places(one, other), choice) == []
            assert len({choice.unit(identity) for identity in ids}) == units


def test_fhir_references_of_one_base_url_need_no_answer():
    assert find_look_alikes(places("http://a/Patient/1", "http://A/Patient/1", "Patient/1", "1", "2"), Choice()) == []


def test_fhir_identifiers_beside_references_need_an_answer():
    mixed = places("Patient/1", "Patient?identifier=mrn|1", "Patient?identifier=mrn|2")
    (found,) = find_look_alikes(mixed, Choice())
    assert (found.kinds, found.count) == (("identifiers",), 2)
    assert find_look_alikes(mixed, Choice(other=frozenset(["identifiers"]))) == []
    same = Choice(same=frozenset(["identifiers"]))
    assert len({same.unit(identity) for identity in mixed}) == 2


def test_identifiers_of_two_systems_need_no_answer_about_base_urls():
    identifiers = places("Patient?identifier=mrn|1", "Patient?identifier=lab|1")
    same = Choice(same=frozenset(["identifiers"]))
    assert len({same.unit(identity) for identity in identifiers}) == 1
    assert find_look_alikes(identifiers, same) == []


@pytest.mark.parametrize("value", ["Patient?identifier=mrn|1", "1"])
def test_choice_about_base_urls_leaves_ids_that_are_no_references(value):
    identity = patient_id(value)
    assert Choice(other=frozenset(["bases"])).unit(identity) == Choice().unit(identity)


@pytest.mark.parametrize("other", ["٠٠٤٢", "００４２", "०० ४२".replace(" ", "")])
def test_ids_with_digits_of_other_scripts_need_an_answer(other):
    (found,) = find_look_alikes(places("0042", other), Choice())
    assert found.kinds == ("width",)


def test_two_patients_with_one_identifier_need_an_answer():
    ids = places("1", "2")
    first, other = ids
    (found,) = find_look_alikes(ids, Choice(), [((first, "Patient:1"), (other, "Patient:2"))])
    assert (found.kinds, found.places) == (("identifiers",), (("row 1", "row 2"),))
    assert found.sentence == "1 Patient resource has an identifier of another one"
    del ids[other]  # which has no record, and may be whom an objection means
    (found,) = find_look_alikes(ids, Choice(), [((first, "Patient:1"), (other, "Patient:2"))])
    assert found.places == (("row 1", "Patient:2"),)


def test_objector_s_look_alike_names_only_undecided_kinds_of_difference():
    assert look_alike_kinds("42", "0042", Choice()) == ("zeros",)
    assert look_alike_kinds("42", "0042", Choice(other=frozenset(["zeros"]))) == ()
    assert look_alike_kinds("42", "43", Choice()) == ()


def test_look_alike_choice_of_an_unknown_or_doubled_kind_is_refused():
    with raises(ConfigurationError, "unknown-kind"):
        Choice(frozenset(["letters"]))
    with raises(ConfigurationError, "both-kinds"):
        Choice(frozenset(["zeros"]), frozenset(["zeros"]))
