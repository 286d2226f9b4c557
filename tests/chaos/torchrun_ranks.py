"""A running launch of torchrun, and its ranks as their notes tell of them."""

import dataclasses
import pathlib
import time

from launches import Run

STORE_SECONDS = 15  # after which torch.distributed gives up its own store


@dataclasses.dataclass
class Rank:
    """A rank's process, as its notes tell of it."""

    number: int
    attempt: int  # restarts of torchrun before it
    pid: int
    notes: list  # (when, words)
    gone: float | None = None  # when it was seen to have ended
    struck: float | None = None

    def begun(self, words):
        return any(text == words for _, text in self.notes)

    @property
    def error(self):
        return next((words for _, words in self.notes if words.startswith("error ")), None)

    def digests(self):
        """What its weights and moments were: (step, digest)."""
        return [tuple(words.split()[1:]) for _, words in self.notes if words.startswith("digest ")]

    def waits(self):
        """What it did from the meeting to its end: (seconds, words)."""
        ends = [when for when, _ in self.notes[1:]] + [self.gone]
        met = False
        for (when, words), end in zip(self.notes, ends, strict=True):
            met = met or words == "meet"
            if met:
                yield end - when, words


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class TorchrunRun(Run):
    """A running launch of torchrun."""

    def __init__(self, command, folder, mark):
        self.notes, self.seen = folder / "notes", {}
        self.notes.mkdir(parents=True)
        super().__init__(command, folder, mark)

    def look(self):
        """Reads the ranks' notes: every rank's process so far."""
        for file in self.notes.glob("*.*.*"):
            number, attempt, pid = map(int, file.name.split("."))
            rank = self.seen.setdefault(pid, Rank(number, attempt, pid, []))
            if rank.gone is None:
                gone = not is_alive(pid)  # before its notes are read, so that none is missed
                whole = file.read_text().split("\n")[:-1]  # the last may be half written
                lines = [line.split(" ", 1) for line in whole]
                rank.notes = [(float(when), words) for when, words in lines]
                rank.gone = time.monotonic() if gone else None
        return list(self.seen.values())

    def story(self):
        """What the ranks did at last, and what the launch printed."""
        lines = []
        for rank in self.look():
            last = [f"{when - self.started:.1f} {words}" for when, words in rank.notes[-4:]]
            if rank.gone is not None:
                last.append(f"{rank.gone - self.started:.1f} gone")
            lines.append(f"rank {rank.number}, attempt {rank.attempt}, process {rank.pid}: {'; '.join(last)}")
        return "\n".join([*lines, self.text()])

    def ranks(self):
        return {rank.number: rank.pid for rank in self.look() if rank.gone is None}

    def until(self, happened, seconds):
        """Looks until something has happened or the launch has ended. Returns what `happened` returned."""
        end = time.monotonic() + seconds
        while not (result := happened(self.look())) and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        return result

    def watch(self, seconds):
        """Waits for the end of the launcher and of its ranks, and notes when each ended."""
        end = time.monotonic() + seconds
        while (self.ranks() or self.process.poll() is None) and time.monotonic() < end:
            time.sleep(0.05)
        # Ranks that a killed launcher has just started look for its store, twice and with a pause.
        return self.wait(patience=15 + (4 * STORE_SECONDS if self.process.poll() == -9 else 0))
