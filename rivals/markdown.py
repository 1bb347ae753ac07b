"""Tables of the pages in docs/rivals/."""

from statistics import mean

from demo.runner.tables import interval


def table(lines: list[list[str]]) -> str:
    """The first line is the heading; nothing where there is a heading alone."""
    if len(lines) == 1:
        return ""
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([rows[0], "|---" * len(lines[0]) + "|", *rows[1:]])


def spread(values: list[float], digits: int) -> str:
    return f"{mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def difference(values: list[float], digits: int, each: bool = False) -> str:
    """Mean of paired differences and its 95 % interval, bold where that excludes 0. each: with the differences."""
    all_of_them = "; " + ", ".join(f"{value:+.{digits}f}" for value in values) if each else ""
    return interval_cell(mean(values), *interval(values), digits, all_of_them)


def interval_cell(middle: float, low: float, high: float, digits: int, more: str = "") -> str:
    cell = f"{middle:+,.{digits}f} ({low:+,.{digits}f} to {high:+,.{digits}f}{more})"
    return cell if low <= 0 <= high else f"**{cell}**"
