"""Whether a command printed what a page says: loosely, because ids and measured figures vary.

`…` stands for anything. A decimal or a per cent on a page was measured, on one processor: any other
number will do, however many digits it has; but what looks like an accuracy, with three digits or
four, must be near. A race of candidates may have another winner, a comparison another end. Ids,
digests and times are compared by their shape, white space not at all; everything else, whole
numbers too, must be as it is written. An id that the page shows stands for the one that came
instead of it, from then on.
"""

import re

ID = r"\b(?:tgt|mdl|src|job|upl|wrk|key)_[0-9a-z]{26}\b"
WORTH = r"[+-]\d+\.\d points on test over doing without it \([-\d. to]+\)"
WON = r"\w+ won over \w+(?:, \w+)*"
VERDICT = (
    r"[+-]\d+\.\d ± \d+\.\d points, ahead in \d of \d:"
    r" here the merge (?:pays|does not pay|is neither clearly better nor worse)"
)
RACE = (
    rf"(?:{WORTH}(?:; {WON})?|{WON}|{VERDICT}"
    r"|no candidate was better: the weights stay as they were)"
)
TOKENS = re.compile(
    rf"(?P<anything>…)|(?P<race>{RACE})|(?P<id>{ID})|(?P<digest>\b[0-9a-f]{{12,64}}\b)"
    r"|(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z)"
    r"|(?P<measured>(?<![\d.])\d+\.\d+(?!\.?\d)|\d+(?=\s?%))|(?P<space>\s+)"
)
ACCURACY = re.compile(r"0\.\d{3,4}|1\.000\d?")
MARGIN = 0.15  # between processors, which round in other ways
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
SHAPES = {
    "anything": r".*?",
    "digest": r"[0-9a-f]+",
    "time": r"\d{4}-\d\d-\d\dT[\d:.]+Z",
    "race": RACE,
    "measured": r"\d+(?:\.\d+)?(?:e[+-]\d+)?",  # 100.4 may be printed as 100, 0.00001 as 1e-05
    "space": r"\s*",
}


class Memory:
    """Which ids have come instead of those that the page shows."""

    def __init__(self) -> None:
        self._came: dict[str, str] = {}

    def translate(self, command: str) -> str:
        return re.sub(ID, lambda shown: self._came.get(shown[0], shown[0]), command)

    def compare(self, expected: str, printed: str) -> bool:
        """Whether they agree; then the new ids are remembered."""
        new: list[str] = []
        accuracies: list[float] = []
        pattern = "".join(self._patterns(expected, new, accuracies))
        found = re.fullmatch(pattern, ESCAPES.sub("", printed).strip(), re.DOTALL)
        if found is None:
            return False
        self._came.update({shown: found[f"id{number}"] for number, shown in enumerate(new)})
        return all(
            abs(float(found[f"accuracy{number}"]) - value) <= MARGIN
            for number, value in enumerate(accuracies)
        )

    def _patterns(self, expected: str, new: list[str], accuracies: list[float]) -> list[str]:
        patterns, position = [], 0
        for token in TOKENS.finditer(expected.strip()):
            patterns.append(re.escape(expected.strip()[position : token.start()]))
            position = token.end()
            kind = token.lastgroup or ""
            if kind == "id":
                patterns.append(self._id(token[0], new))
            elif kind == "measured" and ACCURACY.fullmatch(token[0]):
                patterns.append(f"(?P<accuracy{len(accuracies)}>{SHAPES[kind]})")
                accuracies.append(float(token[0]))
            else:
                patterns.append(SHAPES[kind])
        return [*patterns, re.escape(expected.strip()[position:])]

    def _id(self, shown: str, new: list[str]) -> str:
        if shown in self._came:
            return re.escape(self._came[shown])
        if shown in new:
            return f"(?P=id{new.index(shown)})"
        new.append(shown)
        return rf"(?P<id{len(new) - 1}>{shown.partition('_')[0]}_[0-9a-z]{{26}})"
