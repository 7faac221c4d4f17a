"""Nothing outside a family's folder names its methods: a newcomer who opens the folder has seen all of it."""

from __future__ import annotations

import ast
from pathlib import Path

import fedaccord
from fedaccord.methods.registry import DEFAULT, METHODS

SOURCE = Path(fedaccord.__file__).parent
FAMILIES = SOURCE / "methods"
# Names that are ordinary words as well, e.g. bn = "local". They count only where a method's name is compared.
ORDINARY = {"local", "pooled", "single", "representation"}


def family_of(name):
    return METHODS[name].recipe.split(".")[2]


def literals(tree):
    """Yield every string literal that is not a docstring, with its line and whether a method's name is compared."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    compared = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare | ast.Call | ast.Subscript) and "method" in ast.unparse(node).lower()
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value, node.lineno, id(node) in compared


def foreign_names(path):
    """Return the places in a file that name a method of another family."""
    inside = path.relative_to(FAMILIES).parts[0] if path.is_relative_to(FAMILIES) else ""
    found = []
    for value, line, compared in literals(ast.parse(path.read_text(encoding="utf-8"))):
        named = value in METHODS and value != DEFAULT and (compared or value not in ORDINARY)
        if named and family_of(value) != inside:
            found.append(f"{path.relative_to(SOURCE)}:{line} names '{value}'")
    return found


def test_nothing_outside_a_familys_folder_names_its_methods():
    found = [place for path in sorted(SOURCE.rglob("*.py")) for place in foreign_names(path)]
    assert not found, "\n" + "\n".join(found)


def test_the_search_finds_names():
    tree = ast.parse('"""fedavg"""\nif entry == "fednova": pass\nbn = "local"\nis_it = method_name == "local"\n')
    assert sorted(literals(tree), key=lambda found: found[1]) == [
        ("fednova", 2, False),
        ("local", 3, False),
        ("local", 4, True),
    ]


def test_a_family_is_imported_by_the_registry_alone():
    """Outside code asks the registry; a family imports at most the settings of another one."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        inside = path.relative_to(FAMILIES).parts[0] if path.is_relative_to(FAMILIES) else ""
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else []
            family = parts[2] if parts[:2] == ["fedaccord", "methods"] and len(parts) > 2 else ""
            if (
                (FAMILIES / family).is_dir()
                and family not in ("", inside)
                and not (inside and parts[3:] == ["settings"])
            ):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno} imports {node.module}")
    assert not found, "\n" + "\n".join(found)
