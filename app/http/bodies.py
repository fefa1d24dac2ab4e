"""Bodies that arrive at once: few enough for memory, and shared out so that nobody keeps all."""

from collections import Counter

from app.http.turns import Busy

MAX_BODIES = 48  # of known callers: a megabyte each, on their way to the disk
MAX_UNKNOWN = 128  # whose keys nobody has looked at yet: what came with the head of each


class Bodies:
    """All of this process. Each has a slot from its first byte to its last, or to its refusal."""

    def __init__(self) -> None:
        self.owners: dict[Slot, str | None] = {}  # None: not known yet

    def add(self) -> "Slot | None":
        """A slot for a body of whoever it may be, if there is room."""
        if sum(owner is None for owner in self.owners.values()) >= MAX_UNKNOWN:
            return None
        slot = Slot(self)
        self.owners[slot] = None
        return slot


class Slot:
    """Of one body."""

    def __init__(self, bodies: Bodies) -> None:
        self._owners = bodies.owners

    def assign(self, owner: str) -> None:
        """Count it for its owner, who may have half of what others leave. Raises Busy."""
        if self._owners.get(self, owner) is not None:
            return  # it is theirs already, or nothing more of it will come
        counts = Counter(self._owners.values())
        others = counts.total() - counts[None] - counts[owner]
        if 2 * counts[owner] >= MAX_BODIES - others:
            raise Busy(
                f"{counts[owner]} of your uploads and {others} of others are under way, which is as"
                " many as the service takes from you at once",
                hint="try again when one of them has ended",
            )
        self._owners[self] = owner

    def release(self) -> None:
        self._owners.pop(self, None)
