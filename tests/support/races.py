"""Many creators of one name at once."""

from __future__ import annotations

import threading

from headrace.errors import AlreadyExists
from headrace.storage import Store


def winners(store: Store, name: str, creators: int) -> list[int]:
    """Let so many threads create a name at once, each with its number in it; return who was first."""
    won: list[int] = []
    start = threading.Barrier(creators)

    def create(who: int) -> None:
        start.wait()
        try:
            store.create(name, str(who).encode())
            won.append(who)
        except AlreadyExists:
            return

    threads = [threading.Thread(target=create, args=(who,)) for who in range(creators)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won
