"""``CREATE TABLE … USING json LOCATION 'orders'``, as Spark writes it, in the words of connectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.sqlfile.options import Options, Text
from headrace.sqlfile.tokens import Script


@dataclass(frozen=True)
class Provider:
    """What a provider of Spark is called here.

    Attributes:
        options: the options that it stands for.
        location: the option that LOCATION, or the option ``path``, gives.
        renamed: other options of Spark, by what they are called here.
    """

    options: Mapping[str, str]
    location: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)


def _files(format_: str, **renamed: str) -> Provider:
    return Provider({"connector": "filesystem", "format": format_}, "path", renamed)


PROVIDERS: Final = {
    "json": _files("json"),
    "parquet": _files("parquet"),
    "csv": _files("csv", sep="csv.field-delimiter", delimiter="csv.field-delimiter"),
    "delta": Provider({"connector": "delta"}, "table-path"),
    "jdbc": Provider({"connector": "jdbc"}, renamed={"dbtable": "table-name"}),
}


def options_of(
    script: Script, provider: Text, location: Text | None, given: Mapping[str, Text]
) -> Options:
    """Return the options of a connector that mean what a table of Spark says.

    Args:
        script: the file, for errors.
        provider: what stands behind USING.
        location: what stands behind LOCATION.
        given: what stands behind OPTIONS.

    Raises:
        PipelineError: for a provider that is not known here, and for a place that it does not have.
    """
    known = PROVIDERS.get(provider.text.lower())
    if known is None:
        raise script.error(
            f"USING {provider.text} is not known here",
            provider.at,
            f"there are {', '.join(PROVIDERS)}; for all others write WITH ('connector' = …)",
        )
    found = {name: Text(value, provider.at) for name, value in known.options.items()}
    for name, value in given.items():
        plain = (
            known.location if name == "path" and known.location else known.renamed.get(name, name)
        )
        found[plain] = value
    if location is not None:
        if not known.location:
            raise script.error(
                f"a table USING {provider.text} has no LOCATION",
                location.at,
                "leave it out",
            )
        found[known.location] = location
    return Options(found, provider.at)
