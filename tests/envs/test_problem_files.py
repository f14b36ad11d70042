"""Files of the AIME kind: the forms that are read, and the line that is named where one cannot be."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from lit_agentrl.envs.problem_files import read_problems

RECORDS = [{"id": 0, "problem": "What is 20 + 5?", "answer": "025"}, {"id": 1, "problem": "And 7?", "answer": 7}]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture(params=["jsonl", "json", "wrapped.json", "parquet"])
def problem_file(request, tmp_path):
    path = tmp_path / f"aime.{request.param}"
    if request.param == "jsonl":
        path.write_text("\ufeff" + "\n\n".join(map(json.dumps, RECORDS)) + "\n")
    elif request.param == "parquet":
        columns = {name: [str(record[name]) for record in RECORDS] for name in RECORDS[0]}
        parquet.write_table(pyarrow.table(columns), path)
    else:
        path.write_text(json.dumps({"data": RECORDS} if "wrapped" in path.name else RECORDS))
    return str(path)


def test_every_form_is_read(problem_file):
    first, second = read_problems(problem_file)
    assert (first.text, first.answer) == ("What is 20 + 5?", "025")
    assert (second.text, second.answer) == ("And 7?", "7")


def test_numbers_in_a_parquet_column_are_read(tmp_path):
    path = tmp_path / "aime.parquet"
    parquet.write_table(pyarrow.table({"Problem": ["a?", "b?"], "Answer": pyarrow.array([4.0, 5.0])}), path)
    assert [problem.answer for problem in read_problems(str(path))] == ["4", "5"]


def test_lines_and_places_are_kept(tmp_path):
    path = write(tmp_path / "a.jsonl", '\n{"question": "x?", "final_answer": 3}\n')
    assert read_problems(path)[0].place == f"{path}, line 2"
    assert read_problems(path)[0].source == "a"


def test_line_separators_inside_text_are_no_line_ends(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"problem": "one\u2028two", "answer": 3}\n')
    assert read_problems(path)[0].text == "one\u2028two"


def test_other_fields_can_be_named(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"aufgabe": "x?", "loesung": "3"}')
    with pytest.raises(ValueError, match=r"line 1: no problem \(looked for problem, .*there are aufgabe, loesung\)"):
        read_problems(path)
    assert read_problems(path, problem_field="aufgabe", answer_field="loesung")[0].answer == "3"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"problem": "x?", "answer": 1}\n{"problem"', r"a\.jsonl, line 2: no valid JSON"),
        ("a.jsonl", '{"problem": "x?", "answer": 1}\n\n[1]', r"a\.jsonl, line 3: a record must be an object, got list"),
        ("a.jsonl", '{"problem": "x?"}', r"line 1: no answer"),
        ("a.jsonl", '{"problem": "x?", "answer": ""}', r"line 1: the answer is empty"),
        ("a.jsonl", '{"problem": " ", "answer": "3"}', r"line 1: the problem is empty"),
        ("a.jsonl", '{"problem": ["x?"], "answer": "3"}', r"line 1: problem must be text .* got list and str"),
        ("a.jsonl", '{"problem": "x?", "answer": true}', r"line 1: .* got str and bool"),
        ("a.jsonl", "", r"holds no record"),
        ("a.json", '{"a": 1}', r"a\.json: expected a list of objects"),
        ("a.json", "[", r"a\.json: no valid JSON"),
        ("a.parquet", "no parquet", r"a\.parquet is no readable Parquet file"),
        ("a.csv", "problem,answer", r"must end in \.jsonl, \.json, \.parquet"),
    ],
)
def test_what_cannot_be_read_names_file_and_line(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=f"env\\.init_args\\.files: .*{message}"):
        read_problems(write(tmp_path / name, text))


def test_a_missing_file_is_named():
    with pytest.raises(ValueError, match=r"env\.init_args\.files: there is no file 'no/such\.jsonl'"):
        read_problems("no/such.jsonl")


def test_what_is_not_utf8_is_told(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"problem": "\xff"}')
    with pytest.raises(ValueError, match=r"is not UTF-8 text \(byte 13\)"):
        read_problems(str(path))
