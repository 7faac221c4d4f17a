"""The plan of the house: a room imports only from rooms above it, and nothing in it opens a pickle."""

import ast
import re
from functools import cache
from pathlib import Path

import fedaccord
from fedaccord.labels.views.registry import VIEWS

SOURCE = Path(fedaccord.__file__).parent
ROOMS = [
    "plain_text",
    "terminal",
    "errors",
    "config_errors",
    "toml_text",
    "lazy",
    "extensions",
    "findings",
    "seeds",
    "durable",
    "messages",
    "engines",
    "evaluation",
    "labels",
    "data",
    "models",
    "training",
    "aggregation",
    "adversary",
    "federation",
    "methods",
    "clean_classifier",
    "hosting",
    "runs",
    "renamed",
    "config_sections",
    "config",
    "stopping",
    "recording",
    "summary",
    "session",
    "experiment",
    "settings_search",
    "deployment",
    "checks",
    "api",
    "init",
    "display",
    "cli_options",
    "cli_prepare",
    "cli_watch",
    "cli_compare",
    "cli_run",
    "cli_seeds",
    "cli_tune",
    "cli",
    "__main__",
]
PAPERS = Path(__file__).parents[1] / "papers"
MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "multiprocessing", "marshal", "shelve"}


def room_of(module):
    """Return the room of 'labels/views.py' or 'fedaccord.labels.views'."""
    return module.removeprefix("fedaccord.").replace("/", ".").removesuffix(".py").split(".")[0]


class Imports(ast.NodeVisitor):
    """All names a file imports, at the top or inside functions, but not those for annotations only."""

    def __init__(self, package):
        self.package, self.names, self.calls = package, [], []

    def visit_If(self, node):
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                self.visit(other)
        else:
            self.generic_visit(node)

    def visit_Import(self, node):
        self.names += [alias.name for alias in node.names]

    def visit_ImportFrom(self, node):
        module = node.module or ""
        if node.level:  # a relative import, of which there should be none
            module = ".".join(filter(None, [*self.package[: len(self.package) - node.level + 1], module]))
        # `from fedaccord import labels` imports a room as well as `from fedaccord.labels import views`.
        self.names += [module, *(f"{module}.{alias.name}" for alias in node.names)]

    def visit_Call(self, node):
        called = ast.unparse(node.func)
        self.calls.append(called)
        if called in ("import_module", "importlib.import_module", "__import__"):
            self.names += [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
        self.generic_visit(node)


def read(text, package=("fedaccord",)):
    visitor = Imports(list(package))
    visitor.visit(ast.parse(text))
    return visitor


@cache
def look_into(module):
    return read((SOURCE / module).read_text(), ("fedaccord", *Path(module).parent.parts))


def rooms_used(imports):
    names = {name for name in imports.names if name.startswith("fedaccord.")}
    return {room_of(name) for name in names} - {"__version__"}


def offenders(modules, fault_of):
    """Return a line for each module that has a fault, so that one run names them all."""
    faults = {module: fault_of(module) for module in modules}
    return "".join(f"\n  {module}: {fault}" for module, fault in faults.items() if fault)


def test_a_room_imports_only_from_rooms_above_it():
    def fault(module):
        room = room_of(module)
        if room not in ROOMS:
            return "is in no room of this list; add it where it belongs"
        below = rooms_used(look_into(module)) - set(ROOMS[: ROOMS.index(room) + 1])
        return below and f"imports from {sorted(below)}, below '{room}'"

    found = offenders(MODULES, fault)
    assert not found, found


def test_engines_know_nothing_of_labels_data_models_and_methods():
    def fault(module):
        return sorted(rooms_used(look_into(module)) - {"plain_text", "errors", "durable", "messages", "engines"})

    engines = [module for module in MODULES if module.startswith("engines/")]
    assert engines
    found = offenders(engines, fault)
    assert not found, found


def test_only_the_flower_engine_knows_flower():
    def fault(module):
        packages = {name.split(".")[0] for name in look_into(module).names}
        return sorted(packages & {"flwr", "ray", "uvicorn", "starlette", "httpx"})

    found = offenders([module for module in MODULES if not module.startswith("engines/flower/")], fault)
    assert not found, found


def test_the_package_does_not_import_the_tables_of_papers():
    found = offenders(MODULES, lambda module: sorted(n for n in look_into(module).names if n.split(".")[0] == "papers"))
    assert not found, f"{found}\n`papers` is not installed"


def test_nothing_opens_a_pickle():
    def fault(module):
        imports, opening = look_into(module), {"torch.load", "torch.save", "torch.multiprocessing"}
        unsafe = {name.split(".")[0] for name in imports.names} & UNSAFE
        return sorted(unsafe | opening & {*imports.names, *imports.calls})

    tables = sorted(PAPERS.rglob("*.py"))
    assert tables
    found = offenders([*MODULES, "__init__.py", *tables], fault)
    assert not found, f"{found}\ntensors travel and rest as safetensors"


def test_nothing_outside_the_views_branches_on_a_kind_of_view():
    kinds = {view.kind for view in VIEWS.values()}
    classes = re.compile("|".join(rf"\b{view.__name__}(View)?\b" for view in VIEWS.values()))

    def fault(module):
        found = []
        for node in ast.walk(ast.parse((SOURCE / module).read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
                found += [node.lineno] if classes.search(ast.unparse(node.args[1])) else []
            elif isinstance(node, ast.Compare):
                words = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)} & kinds
                found += [node.lineno] if words and re.search(r"kind|view", ast.unparse(node)) else []
        return found and f"lines {found}"

    found = offenders([module for module in MODULES if not module.startswith("labels/views/")], fault)
    assert not found, found


def test_the_reader_finds_what_it_looks_for():
    found = read(
        """
from typing import TYPE_CHECKING
import fedaccord.labels.views
from fedaccord import methods
if TYPE_CHECKING:
    from fedaccord.runs.folder import RunFolder
def later():
    from fedaccord.federation import round
    from . import cli
    import_module("fedaccord.data.sites")
    torch.load("x")
    import pickle
"""
    )
    assert rooms_used(found) == {"labels", "methods", "federation", "cli", "data"}
    assert "torch.load" in found.calls
    assert "pickle" in found.names
    assert len(MODULES) > 40
