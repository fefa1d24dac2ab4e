"""What tries the pages out notices when they are wrong."""

from pathlib import Path

import pytest

from scripts.tryout.commands import Command, File, steps
from scripts.tryout.output import Memory
from scripts.tryout.reader import Differs, Reader

JOB, OTHER = "job_01m7hhfsfr6ngys6g9bgvb513x", "job_01m7hhfsfr6ngys6g9bgvb513y"


def page(*blocks: str) -> str:
    return "# Page\n\n" + "\n\n".join(blocks)


def console(text: str) -> str:
    return f"```console\n{text}\n```"


def test_commands_and_files_are_found_in_order() -> None:
    found = steps(
        page(
            '```json title="model.json"\n{}\n```',
            console("$ one \\\n    more\nprinted\n\n$ two"),
            "```python\nnot run\n```",
        )
    )

    assert found == [
        File(4, "model.json", "{}\n"),
        Command(8, "one \\\n    more", "printed"),
        Command(12, "two", ""),
    ]


@pytest.mark.parametrize(
    "block", ["```sh\nmake\n```", "```\n$ make\n```", console("make"), "```bash\nls\n```"]
)
def test_commands_that_would_be_passed_over_are_refused(block: str) -> None:
    with pytest.raises(ValueError, match="line 4"):
        steps(page(block))


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("a … z", "a b c z"),
        ("…", ""),
        ("accuracy 0.98", "accuracy 0.1234567"),
        ("accuracy 0.98", "accuracy 1"),
        ("accuracy 0.98.", "accuracy 1.2e-05."),
        ("0.95 → 0.98, 84.1% of it", "1.0000 → 0.7, 100% of it"),
        ("84% transferred", "7% transferred"),
        ("accuracy 0.983 for 0.912", "accuracy 0.9 for 1.0000"),
        ('{"a": 1,\n "b": 2}', '{"a":1,"b":2}'),
        ("sha256 9f86d081884c7d659a2f", "sha256 0000000000000000abcd"),
        ("at 2026-01-31T12:00:00Z", "at 2027-02-01T01:02:03.456Z"),
        ("done", "\x1b[32mdone\x1b[0m\r\n"),
        (
            "v2\n  +1.8 points on test over doing without it (-0.4 to 3.1); mean won over keep",
            "v2\n  keep won over grasp, source, mean\n",
        ),
        ("+0.1 points on test over doing without it (0.0 to 0.2)", "keep won over mean"),
        (
            "-0.6 ± 0.6 points, ahead in 1 of 3: here the merge does not pay.",
            "+3.1 ± 1.0 points, ahead in 3 of 3: here the merge pays.",
        ),
        ("source won over keep", "no candidate was better: the weights stay as they were"),
        (f"{JOB} {JOB}", f"{OTHER} {OTHER}"),
    ],
)
def test_what_varies_is_compared_by_shape(expected: str, printed: str) -> None:
    assert Memory().compare(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("version 3", "version 4"),
        ("accuracy 0.98", "accuracy none"),
        ("accuracy 0.98", "accuracy 0.98 of none"),
        ("84% transferred", "all transferred"),
        ("accuracy 0.983", "accuracy 0.78"),
        (f"{JOB} 0.983 {JOB}", f"{JOB} 0.9 {OTHER}"),
        ("84% transferred", "84 transferred"),
        ("0.1.0", "0.1.1"),
        ("at 127.0.0.1", "at 127.0.0.2"),
        ('{"before":null,"after":0.77}', '{"before":0.5,"after":0.77}'),
        ("2  0.98\n1  0.95", "2  0.98"),
        ("succeeded", "succeeded, but"),
        (f"{JOB} {JOB}", f"{JOB} {OTHER}"),
        (JOB, JOB.replace("job", "tgt")),
        ("a … z", "a b c"),
    ],
)
def test_all_else_must_be_as_printed(expected: str, printed: str) -> None:
    assert not Memory().compare(expected, printed)


def test_an_id_stands_for_the_one_that_came_instead() -> None:
    memory = Memory()
    memory.compare(f"began {JOB}", f"began {OTHER}")

    assert memory.translate(f"curl /jobs/{JOB}?wait=60") == f"curl /jobs/{OTHER}?wait=60"
    assert not memory.compare(JOB, JOB)


def read(folder: Path, text: str) -> int:
    (folder / "page.md").write_text(text)
    return Reader(folder / "page.md", folder, log=lambda _: None).read()


def test_commands_share_a_shell(tmp_path: Path) -> None:
    written = '```text title="note.txt"\nhello\n```'

    commands = read(
        tmp_path,
        page(
            written,
            console("$ cat note.txt\nhello\n$ cd /; name=world\n$ echo $PWD $name\n/ world"),
            console("$ false\n$ echo $?\n1\n$ cat\n$ printf 'no newline'\nno newline"),
        ),
    )

    assert commands == 7


def test_the_address_of_the_page_is_the_services(tmp_path: Path) -> None:
    read(tmp_path, page(console("$ echo http://127.0.0.1:8000/docs\nhttp://127.0.0.1:8000/docs")))
    with pytest.raises(Differs):
        read(tmp_path, page(console("$ test 127.0.0.1:8000 = 127.0.0.1:$((7999 + 1))")))


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("$ true\n$ false", "page.md:5: false\nit ended with 1"),
        ("$ echo 1\n2", "page.md:4: echo 1\nit should print\n2\n\nbut printed\n1"),
        ("$ exit 3", "ended the shell"),
        ("$ false; : serve", "not ready"),
    ],
)
def test_the_first_difference_ends_it(block: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(Differs) as caught:
        read(tmp_path, page(console(f"{block}\n$ touch too-late")))

    assert why in str(caught.value)
    assert not (tmp_path / "too-late").exists()
