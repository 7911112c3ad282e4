-- Notes of an OMOP Common Data Model (5.3 and 5.4), with the class of each note as its label.
-- undersong-party data add examples/omop/notes.sql --database url.txt --label-field label --user-field patient
SELECT
    note.note_text AS text,
    concept.concept_name AS label,
    CAST(note.person_id AS VARCHAR(20)) AS patient
FROM note
LEFT JOIN concept ON concept.concept_id = note.note_class_concept_id
WHERE note.note_text IS NOT NULL
ORDER BY note.note_id
