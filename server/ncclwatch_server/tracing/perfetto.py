"""Writes a trace in Perfetto's format, with Perfetto's own library.

The format: https://perfetto.dev/docs/reference/synthetic-track-event. Hosts are groups of tracks, ranks are tracks
in them, and what is known of a rank lies below it. Texts are interned: each is written once.
"""

import hashlib
import io
from collections.abc import Iterable
from typing import BinaryIO

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from ncclwatch.contract.version import VERSION
from ncclwatch.contract.words.printable import harmless
from ncclwatch_server.tracing.model import RankTracks, Slice, Timeline

SEQUENCE = 1
NAME_CHARS_MAX = 300


def encode(timeline: Timeline) -> bytes:
    """Return the trace as the bytes of a .pftrace file."""
    file = io.BytesIO()
    _Writer(file).write(timeline)
    return file.getvalue()


class _Writer:
    def __init__(self, file: BinaryIO) -> None:
        self._builder = StreamingTraceProtoBuilder(file)
        self._names: dict[str, int] = {}
        self._fresh = True

    def write(self, timeline: Timeline) -> None:
        """Write all tracks. Those of incidents and of culprits come first."""
        top = self._track(f"ncclwatch: job {timeline.job}", order=0)
        self._slices(self._track("incidents", top, order=0), timeline.incidents)
        began_s = min((each.begin_s for each in _all(timeline)), default=0.0)
        facts = (("version", VERSION), *((f"note {number}", note) for number, note in enumerate(timeline.notes, 1)))
        about = Slice(begin_s=began_s, end_s=began_s, name="about this trace", kind="incident", facts=facts)
        self._slices(self._track("about", top, order=1), (about,))
        hosts: dict[str, int] = {}
        for number, rank in enumerate(sorted(timeline.ranks, key=lambda each: (not each.culprit, each.rank)), 1):
            if rank.culprit:
                self._rank(rank, None, number)
                continue
            if rank.host not in hosts:
                hosts[rank.host] = self._track(f"host {rank.host or 'unknown'}", order=number)
            self._rank(rank, hosts[rank.host], number)

    def _rank(self, rank: RankTracks, parent: int | None, order: int) -> None:
        told = f" on {rank.host}: culprit" if rank.culprit else ""
        mine = self._track(f"rank {rank.rank}{told}", parent, order=order)
        for number, track in enumerate(rank.tracks):
            self._slices(self._track(track.name, mine, order=number, key=f"{rank.rank}"), track.slices)

    def _track(self, name: str, parent: int | None = None, *, order: int, key: str = "") -> int:
        digest = hashlib.blake2b(f"{parent}/{key}/{name}".encode(errors="backslashreplace"), digest_size=8).digest()
        uuid = int.from_bytes(digest, "little") | 1
        packet = self._packet()
        packet.track_descriptor.uuid = uuid
        packet.track_descriptor.name = harmless(name)[:NAME_CHARS_MAX]
        packet.track_descriptor.sibling_order_rank = order
        packet.track_descriptor.child_ordering = TrackDescriptor.EXPLICIT
        if parent is not None:
            packet.track_descriptor.parent_uuid = parent
        self._builder.write_packet(packet)
        return uuid

    def _slices(self, track: int, slices: Iterable[Slice]) -> None:
        for each in slices:
            packet = self._packet(each.begin_s)
            event = packet.track_event
            event.track_uuid = track
            event.type = TrackEvent.TYPE_SLICE_BEGIN if each.end_s > each.begin_s else TrackEvent.TYPE_INSTANT
            event.categories.append(each.kind)
            event.name_iid = self._interned(packet, harmless(each.name)[:NAME_CHARS_MAX])
            for name, value in each.facts:
                annotation = event.debug_annotations.add()
                annotation.name = name
                annotation.string_value = harmless(value)
            if each.flow:
                event.flow_ids.append(each.flow)
            self._builder.write_packet(packet)
            if each.end_s > each.begin_s:
                end = self._packet(each.end_s)
                end.track_event.track_uuid = track
                end.track_event.type = TrackEvent.TYPE_SLICE_END
                self._builder.write_packet(end)

    def _interned(self, packet: TracePacket, name: str) -> int:
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = len(self._names) + 1
            entry = packet.interned_data.event_names.add()
            entry.iid, entry.name = known, name
        return known

    def _packet(self, at_s: float | None = None) -> TracePacket:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = SEQUENCE
        packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        if self._fresh:
            packet.sequence_flags |= TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
            self._fresh = False
        if at_s is not None:
            packet.timestamp = max(0, round(at_s * 1e9))
        return packet


def _all(timeline: Timeline) -> Iterable[Slice]:
    yield from timeline.incidents
    for rank in timeline.ranks:
        for track in rank.tracks:
            yield from track.slices
