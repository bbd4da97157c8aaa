"""Whether the library keeps to its budgets: code tokens a file, and for each sum of them (`make
lint`).

A code token is what a reader takes in, however long the lines: comments, docstrings, line ends and
indentation do not count. ``budget.toml`` has the limits. A file's budget rises only when another's
falls by as much. So it is with the words of the README and of all notebooks' texts.
"""

import ast
import io
import json
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNCOUNTED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def tokens(source: str) -> int:
    """Code tokens of a module's source."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstrings.add((node.body[0].lineno, node.body[0].col_offset))
    count = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = token.type == tokenize.STRING and token.start in docstrings
        count += token.type not in UNCOUNTED and not is_docstring
    return count


def words(place: Path) -> int:
    """Words of a page, or of the texts of all notebooks in a folder."""
    if place.is_file():
        return len(place.read_text("utf-8").split())
    count = 0
    for notebook in place.glob("*.ipynb"):
        for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                count += len("".join(cell["source"]).split())
    return count


def over(budget: dict[str, dict[str, int]], root: Path = ROOT) -> list[str]:
    """What is above its budget, or has none, a line each."""
    found = []
    counts = {}
    for folder in ("lib", "tests"):
        for file in sorted((root / folder).rglob("*.py")):
            counts[file.relative_to(root).as_posix()] = tokens(file.read_text("utf-8"))
    for name, count in counts.items():
        if name.startswith("lib/") and name not in budget["files"] and count > 0:
            found.append(f"{name} has {count} tokens and no budget: give it one in budget.toml.")
    for name, limit in budget["files"].items():
        if name not in counts:
            found.append(f"{name} has a budget and is not there.")
        elif counts[name] > limit:
            found.append(f"{name} has {counts[name]} tokens; its budget is {limit}.")
    for prefix, limit in budget["sums"].items():
        total = sum(count for name, count in counts.items() if name.startswith(f"{prefix}/"))
        if total > limit:
            found.append(f"{prefix} has {total} tokens in all; its budget is {limit}.")
    for name, limit in budget.get("words", {}).items():
        total = words(root / name)
        if total > limit:
            found.append(f"{name} has {total} words; its budget is {limit}.")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(over(tomllib.loads((ROOT / "budget.toml").read_text("utf-8")))) or 0)
