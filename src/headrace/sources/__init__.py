"""Sources: where records come from."""

from headrace.sources.base import Limit, Offer, Source, Split
from headrace.sources.files import Files
from headrace.sources.iterables import Iterable

__all__ = ["Files", "Iterable", "Limit", "Offer", "Source", "Split"]
