"""Find the pipeline that a command line names: ``FILE.py`` or ``FILE.py:NAME``.

Whatever is wrong with the file, there is one error, with the place in the file.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import linecache
import sys
import traceback
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

from headrace.errors import HeadraceError, PipelineError
from headrace.errors.user_code import error_text, is_from_outside
from headrace.pipeline import Pipeline

#: The name that is looked up if none is given.
DEFAULT_NAME = "pipeline"


def load_pipeline(target: str) -> Pipeline:
    """Return the pipeline of ``FILE.py`` or ``FILE.py:NAME``.

    NAME is a :class:`Pipeline`, or a function without arguments that returns one.

    Raises:
        PipelineError: if there is none, or the file cannot be read or run.
    """
    file, _, name = target.partition(":")
    module = _module(_existing(file))
    return _pipeline(module, name or DEFAULT_NAME, file)


def _existing(file: str) -> Path:
    path = Path(file)
    if path.is_file():
        return path
    what = "is a directory" if path.is_dir() else "does not exist"
    names = [found.name for found in path.parent.glob("*.py")] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1) or difflib.get_close_matches(
        f"{path.name}.py", names, n=1, cutoff=0.9
    )
    meant = f"did you mean {path.with_name(close[0])}? " if close else ""
    raise PipelineError(f"{file} {what}", remedy=f"{meant}give FILE.py, or FILE.py:NAME")


def _module(path: Path) -> ModuleType:
    """Run a file as a module.

    Raises:
        PipelineError: if it cannot be compiled, or raises.
    """
    sys.path.insert(0, str(path.parent.resolve()))
    loader = _AsItIsNow(path.stem, str(path))
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
    if spec is None:
        raise PipelineError(f"{path} is not a Python file", remedy="give FILE.py, or FILE.py:NAME")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        loader.exec_module(module)
    except BaseException as error:
        _refuse(error, path)
    return module


class _AsItIsNow(importlib.machinery.SourceFileLoader):
    """Compiles a file each time: one that is written twice in a second looks as it did before."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _pipeline(module: ModuleType, name: str, file: str) -> Pipeline:
    found: Any = getattr(module, name, None)
    what = f"{name} of {file}"
    if callable(found) and not isinstance(found, Pipeline):
        what = f"{name}() of {file}"
        try:
            found = found()
        except BaseException as error:
            _refuse(error, Path(file))
        if found is None:
            raise PipelineError(f"{what} returned None", remedy="end it with `return p`")
    elif found is None:
        others = [key for key, item in vars(module).items() if isinstance(item, Pipeline)]
        raise PipelineError(
            f"{file} has no pipeline called {name!r}",
            remedy=f"say {file}:{others[0]}"
            if others
            else f"define `{name}` as a Pipeline or a function that returns one, or say FILE.py:NAME",
        )
    if not isinstance(found, Pipeline):
        raise PipelineError(
            f"{what} is a {type(found).__name__}, not a Pipeline",
            remedy="return the hr.Pipeline that you have built",
        )
    return found


def _refuse(error: BaseException, path: Path) -> NoReturn:
    """Raise what a file has raised as an error with the place in that file.

    Raises:
        PipelineError: for what the file has raised. What comes from outside, such as Ctrl-C, is
            raised as it is.
    """
    if isinstance(error, HeadraceError) or is_from_outside(error):
        raise error
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
        raise PipelineError(
            f"{error.msg}\n{(error.text or '').rstrip()}", place=place, remedy="correct that line"
        ) from None
    if not isinstance(error, Exception):
        raise PipelineError(
            f"{path} raised {error_text(error)}, before there was a pipeline",
            remedy='what it does as a script belongs behind `if __name__ == "__main__":`',
        ) from error
    lines = traceback.extract_tb(error.__traceback__)
    own = [line for line in lines if Path(line.filename).name == path.name] or lines
    raise PipelineError(
        f"{error_text(error)}\n    {own[-1].line}",
        place=f"{own[-1].filename}:{own[-1].lineno}",
        remedy="correct that line",
    ) from error


# -- loading again --------------------------------------------------------------------------------


def digest_of(target: str) -> str:
    """Return the digest of the file of ``FILE.py`` or ``FILE.py:NAME``.

    Raises:
        PipelineError: if there is no such file.
    """
    return hashlib.sha256(_existing(target.partition(":")[0]).read_bytes()).hexdigest()


def check_digest(target: str, digest: str) -> None:
    """Check that the file of ``FILE.py`` or ``FILE.py:NAME`` has a digest.

    Raises:
        PipelineError: if it has another one, or is not there.
    """
    if digest_of(target) != digest:
        file = Path(target.partition(":")[0]).resolve()
        raise PipelineError(
            f"the file that the pipeline runs from, {file}, differs from the one that the change was "
            "asked for with",
            remedy="put the new code there, and ask again",
        )


def load_again(target: str, digest: str) -> Pipeline:
    """Return the pipeline of a file as it is now. The modules beside the file are loaded again, too.

    If that fails, the modules stay as they were.

    Args:
        target: ``FILE.py`` or ``FILE.py:NAME``.
        digest: the digest that the file must have.

    Raises:
        PipelineError: if the file has another digest, or is not there, or cannot be run.
    """
    file = target.partition(":")[0]
    check_digest(target, digest)
    before, path = dict(sys.modules), list(sys.path)
    for name in _beside(Path(file).resolve().parent):
        del sys.modules[name]
    importlib.invalidate_caches()
    linecache.checkcache()
    try:
        return load_pipeline(target)
    except BaseException:
        sys.modules.clear()
        sys.modules.update(before)
        raise
    finally:
        sys.path[:] = path


def _beside(folder: Path) -> list[str]:
    """Return the modules that were loaded from a folder, and not from packages installed in it."""
    found = []
    for name, module in sys.modules.items():
        file = getattr(module, "__file__", None)
        if name == "__main__" or not file or not Path(file).is_absolute():
            continue
        inside = Path(file).resolve()
        installed = {"site-packages", "dist-packages", "headrace"} & set(inside.parts)
        if inside.is_relative_to(folder) and not installed:
            found.append(name)
    return found
