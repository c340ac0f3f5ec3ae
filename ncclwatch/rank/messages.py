"""Counts a rank's sends and receives by their peer, and notes which of them its threads have waited for.

On a GPU wait() blocks nobody: it orders the current stream of its thread after the message. In the default stream, what
the thread issues from then on comes after it; so does what it issued before wait(), if that was nothing but messages,
whose own order the backend tells. In another stream it says nothing of what is issued outside of that.

Without the native recorder a work is known by the address of its Python object alone, which torch makes anew for its
caller: then a message that was not issued in a batch may not be known to have been waited for.
"""

from ncclwatch.contract.ring.layout import PeerWord, waited_word
from ncclwatch.rank.operations import SEND, Group, Issued, ThreadState
from ncclwatch.rank.ring.ringfile import RingFile

BATCH_MAX = 4096  # messages of a batch that are kept: an exception may have left it open


class Messages:
    """The sends and receives of a rank, in the p2p counters of its ring."""

    def __init__(self, ring: RingFile) -> None:
        self._ring = ring
        self._waited: dict[tuple[int, int], tuple[int, int]] = {}  # row, word -> newest that was waited for, run to it

    def count(self, group: Group, op: int, peer: int) -> int:
        """Count a message that is issued; returns its number, from 1, of its kind between the two."""
        row, counts = group.peers.get(peer) or (-1, [0, 0, 0, 0])
        if row < 0:
            row = self._ring.add_peer(group.number, peer)
            group.peers[peer] = (row, counts)
        return self._add(row, counts, 0 if op == SEND else 2, 1)

    def note(self, state: ThreadState, issued: Issued) -> None:
        """Remember by which thread a message was issued, after how many collectives, and in which batch."""
        state.messages += 1
        issued.after = (state.row, state.issued - state.messages)
        issued.batch = None
        if state.batch is not None and len(state.batch) < BATCH_MAX:
            state.batch.append(issued)

    def end_batch(self, state: ThreadState) -> Issued | None:
        """Note that all messages of a thread's batch are issued as one; returns the last of them, None on the host."""
        batch, state.batch = state.batch, None
        if not batch or not batch[-1].group.by_account:
            return None
        for issued in batch:
            issued.batch = batch
        return batch[-1]

    def refuse(self, issued: Issued) -> None:
        """Take a message back that the backend refused to take."""
        row, counts = issued.group.peers[issued.peer]
        at = 0 if issued.op == SEND else 2
        if counts[at] == issued.seq:
            self._add(row, counts, at, -1)

    def end(self, issued: Issued) -> None:
        """Count a message that is through."""
        row, counts = issued.group.peers[issued.peer]
        self._add(row, counts, 1 if issued.op == SEND else 3, 1)

    def order(self, state: ThreadState, waited: Issued) -> None:
        """Note that a thread has waited for a message on a device, or for the batch that it is in."""
        if not _in_default_stream():
            return
        now = (state.row, state.issued - state.messages)
        for issued in waited.batch or (waited,):
            row, _ = issued.group.peers[issued.peer]
            if row >= 0:
                self._note_waited(row, issued, in_order=issued.after == now)

    def _note_waited(self, row: int, issued: Issued, *, in_order: bool) -> None:
        """Tell of the messages that count up to the newest, without a gap: one between them may not count."""
        word = PeerWord.SENDS_WAITED if issued.op == SEND else PeerWord.RECVS_WAITED
        newest, run = self._waited.get((row, word), (0, 0))
        if newest - run < issued.seq <= newest:
            return
        run = 0 if not in_order else run + 1 if issued.seq == newest + 1 else 1
        self._waited[row, word] = (issued.seq, run)
        self._ring.set_peer(row, (waited_word(issued.seq, run),), word)

    def _add(self, row: int, counts: list[int], at: int, number: int) -> int:
        counts[at] += number
        if row >= 0:  # only this one: what is complete on a device is counted by another thread
            self._ring.set_peer(row, (counts[at],), PeerWord.SENDS + at)
        return counts[at]


def _in_default_stream() -> bool:
    import torch  # not at `import ncclwatch`

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    device = torch.cuda.current_device()
    return bool(torch.cuda.current_stream(device) == torch.cuda.default_stream(device))
