"""Reads frames and bodies of the protocol, with nothing but what docs/protocol.md says.

It shows that a client in another language can be written from the page: kinds, fields and types come out of its tables
at run time, and the tags of extensions out of its text. The encodings below were written from the text. Standard input
has one case per line: `frame HEX JSON`, or `body NAME HEX JSON`. Lines that begin with `#` are skipped. Each case is decoded
and compared with the JSON of the same message. The JSON of bytes that must be refused is `{"refused": WHY}`. The exit status is 1 if any differs.

usage: net/tests/decoder/wharf_decoder.py docs/protocol.md < net/tests/golden/cases.txt
"""

import json
import re
import struct
import sys

FLAG_EXTENSIONS, FLAG_REPLY, FLAG_ERROR = 1, 2, 4
HEADER_BYTES, FRAME_BYTES_MAX, EXTENSIONS_MAX = 24, 1_048_576, 16
TAG_CRITICAL = 0x8000


class Malformed(Exception):
    """The bytes are not what the page describes."""


class Page:
    """The tables of the page."""

    def __init__(self, text):
        self.kinds = {}
        self.bodies = {}
        # The text names each extension by its tag: `tag 17 ([Deadline](#deadline))`.
        tags = re.findall(r"\btag\s+(\d+)\s+\(\[(\w+)\]", text)
        self.extensions = {int(tag): name for tag, name in tags}
        body = None
        for line in text.splitlines():
            heading = re.fullmatch(r"(##+) (.+)", line)
            if heading:
                body = heading[2] if heading[1] == "###" else None
                continue
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
            if not cells or set(cells[0]) <= {"-"}:
                continue
            if len(cells) >= 6 and cells[0].isdigit():
                request, reply = (re.fullmatch(r"\[(\w+)\]\(#\w+\)", cell)[1] for cell in cells[2:4])
                self.kinds[int(cells[0])] = (request, reply)
            elif body and len(cells) == 3 and cells[0].startswith("`"):
                self.bodies.setdefault(body, []).append((cells[0].strip("`"), cells[1]))

    def read_frame(self, data):
        """Returns the fields of the header, the body and the extensions of a frame, which must be all of the bytes."""
        if len(data) < HEADER_BYTES:
            raise Malformed(f"{len(data)} bytes are no header")
        length, kind, flags, version, sequence, mark = struct.unpack_from("<IHBBQQ", data)
        if not HEADER_BYTES - 4 <= length <= FRAME_BYTES_MAX:
            raise Malformed(f"length {length}")
        if length != len(data) - 4:
            raise Malformed(f"frame of {length + 4} bytes, {len(data)} are there")
        if flags & ~(FLAG_EXTENSIONS | FLAG_REPLY | FLAG_ERROR):
            raise Malformed(f"flags {flags}")
        if flags & FLAG_ERROR and not flags & FLAG_REPLY:
            raise Malformed(f"flags {flags}: only a reply is a fault")
        if version != 1:
            raise Malformed(f"version {version}")
        if kind not in self.kinds:
            raise Malformed(f"kind {kind}")
        request, reply = self.kinds[kind]
        name = "Fault" if flags & FLAG_ERROR else reply if flags & FLAG_REPLY else request
        reader = Reader(self, data[HEADER_BYTES:])
        frame = {"kind": kind, "flags": flags, "sequence": sequence, "lowest_unacknowledged": mark}
        frame["body"] = reader.body(name)
        frame["extensions"] = reader.extensions() if flags & FLAG_EXTENSIONS else []
        reader.end()
        return frame

    def read_body(self, name, data):
        """Returns a body, which must be all of the bytes."""
        reader = Reader(self, data)
        body = reader.body(name)
        reader.end()
        return body


class Reader:
    """Bytes that are read from the front."""

    def __init__(self, page, data):
        self.page, self.data, self.at = page, data, 0

    def take(self, count):
        taken = self.data[self.at : self.at + count]
        if len(taken) < count:
            raise Malformed(f"{count} bytes wanted at {self.at}, {len(taken)} left")
        self.at += count
        return taken

    def end(self):
        if self.at != len(self.data):
            raise Malformed(f"{len(self.data) - self.at} bytes left")

    def number(self, bits):
        """A variable-length integer of at most so many bits."""
        first = self.take(1)[0]
        if first < 251:
            return first
        if first > 254:
            raise Malformed(f"integer that begins with {first}")
        size = 2 << (first - 251)
        if size * 8 > bits:
            raise Malformed(f"{size} bytes for {bits} bits")
        return int.from_bytes(self.take(size), "little")

    def extensions(self):
        """All bytes that are left. An extension that the page does not describe is skipped: it has no body."""
        found = []
        while self.at < len(self.data):
            if len(found) == EXTENSIONS_MAX:
                raise Malformed(f"more than {EXTENSIONS_MAX} extensions")
            tag, size = struct.unpack("<HI", self.take(6))
            content = self.take(size)
            name = self.page.extensions.get(tag)
            if name is None and tag & TAG_CRITICAL:
                raise Malformed(f"critical extension {tag:#06x}")
            found.append({"tag": tag, "body": name and self.page.read_body(name, content)})
        return found

    def body(self, name):
        fields = self.page.bodies.get(name, [])
        return {field: self.value(kind) for field, kind in fields}

    def value(self, kind):
        kind = kind.split(";")[0]
        if kind.startswith("optional "):
            present = self.take(1)[0]
            if present > 1:
                raise Malformed(f"optional that begins with {present}")
            return self.value(kind.removeprefix("optional ")) if present else None
        kind, _, bound = kind.partition(", at most ")
        most = int(bound.split()[0]) if bound else None
        if kind.startswith("list of "):
            count = self.number(64)
            if most is not None and count > most:
                raise Malformed(f"list of {count}, at most {most} are allowed")
            return [self.value(kind.removeprefix("list of ")) for _ in range(count)]
        link = re.fullmatch(r"\[(\w+)\]\(#\w+\)", kind)
        if link:
            return self.body(link[1])
        if kind == "text":
            size = self.number(64)
            if most is not None and size > most:
                raise Malformed(f"text of {size} bytes, at most {most} are allowed")
            try:
                return self.take(size).decode("utf-8")
            except UnicodeDecodeError:
                raise Malformed("text that is not UTF-8") from None
        if kind == "bool":
            truth = self.take(1)[0]
            if truth > 1:
                raise Malformed(f"bool that is {truth}")
            return truth == 1
        if kind == "u8":
            return self.take(1)[0]
        if kind == "16 bytes":
            return list(self.take(16))
        integer = re.fullmatch(r"([ui])(16|32|64|128)", kind)
        if not integer:
            raise Malformed(f"the page has an unknown type: {kind}")
        number = self.number(int(integer[2]))
        return number if integer[1] == "u" else (number >> 1) ^ -(number & 1)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        page = Page(file.read())
    cases = failed = 0
    for line in sys.stdin:
        if line.startswith("#"):
            continue
        cases += 1
        form, rest = line.rstrip("\n").split(" ", 1)
        name, rest = rest.split(" ", 1) if form == "body" else (None, rest)
        data, expected = rest.split(" ", 1)
        data = bytes.fromhex(data)
        try:
            found = page.read_body(name, data) if form == "body" else page.read_frame(data)
        except Malformed as why:
            found = {"refused": str(why)}
        if found != json.loads(expected):
            failed += 1
            print(f"case {cases}: {line.rstrip()}\n  decoded: {json.dumps(found)}", file=sys.stderr)
    print(f"{cases} cases, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
