"""What a command prints while it runs, and at its end."""

import shutil
import sys
import textwrap
import time


class Line:
    """The progress line of one stage: rewritten in place on a terminal, elsewhere printed at every tenth count."""

    def __init__(self, label: str):
        self.label, self.in_place, self.began = label, sys.stdout.isatty(), time.monotonic()

    def show(self, text: str, count: int = 0, last: bool = False) -> None:
        text = f"{self.label:<8} {text}"
        if self.in_place:
            width = None if last else shutil.get_terminal_size().columns - 1  # a wrapped line cannot be rewritten
            print(f"\r\033[K{text[:width]}", end="\n" if last else "", flush=True)
        elif last or (count % 10 == 0 and count > 0):
            print(text, flush=True)

    def seconds(self) -> float:
        return time.monotonic() - self.began


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def print_end(table: str, sentences: list[str], picture: object, numbers: str, logs: str) -> None:
    """The table, what it shows, and where the files are."""
    print(f"\n{table}\n")
    print("\n".join(textwrap.fill(sentence, 118, break_on_hyphens=False) for sentence in sentences))
    print(f"\npicture  {picture}\nnumbers  {numbers}\nlogs     {logs}")
