"""Looks at this process: Python, packages, Java, variables of the environment."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

from headrace.doctor.findings import Finding, failed
from headrace.errors import SessionUnsuitable
from headrace.session.java import check_java

_PREFIX = "HEADRACE_"


def of_process(environ: Mapping[str, str], variables: Iterable[str]) -> Iterator[Finding]:
    """Yield what is found in this process.

    Args:
        environ: the environment.
        variables: the variables that commands know.
    """
    yield _python()
    yield _packages()
    yield _java(environ)
    yield _variables(environ, set(variables))


def _python() -> Finding:
    text = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    )
    wanted = metadata.metadata("headrace")["Requires-Python"]
    facts = {"version": platform.python_version(), "wanted": wanted}
    return Finding("python", "ok", text, facts=facts)


def _packages() -> Finding:
    """Compare the packages that Headrace needs with those that are installed."""
    found: dict[str, str] = {"headrace": metadata.version("headrace")}
    wrong = []
    for requirement in _required():
        try:
            found[requirement.name] = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement} is missing")
            continue
        if not requirement.specifier.contains(Version(found[requirement.name]), prereleases=True):
            wrong.append(f"{requirement.name} is {found[requirement.name]}, not {requirement}")
    text = ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
    facts = {"versions": found, "wrong": wrong}
    if wrong:
        remedy = "install Headrace again into an environment of its own: pip install headrace"
        return Finding("packages", "failed", "; ".join(wrong), remedy, facts)
    return Finding("packages", "ok", text, facts=facts)


def _required() -> Iterator[Requirement]:
    for text in metadata.requires("headrace") or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def _java(environ: Mapping[str, str]) -> Finding:
    try:
        check_java(environ)
    except SessionUnsuitable as error:
        return failed("java", error)
    found = environ.get("JAVA_HOME")
    return Finding("java", "ok", f"JAVA_HOME={found}" if found else "java is in PATH")


def _variables(environ: Mapping[str, str], known: set[str]) -> Finding:
    """Name the variables of Headrace that are set. One that no command knows is likely a slip."""
    given = sorted(name for name in environ if name.startswith(_PREFIX))
    unknown = [name for name in given if name not in known]
    facts = {"set": given, "unknown": unknown}
    if unknown:
        text = f"no command knows {', '.join(unknown)}"
        remedy = "see --help of the command: it names the variable of each option"
        return Finding("environment", "warning", text, remedy, facts)
    return Finding("environment", "ok", ", ".join(given) or "nothing is set", facts=facts)
