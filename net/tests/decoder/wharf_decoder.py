"""Reads frames and bodies of the protocol, with nothing but what docs/protocol.md says.

It shows that a client in another language can be written from the page: kinds, fields and types come out of its tables
at run time, and the encodings below out of its prose. Standard input has one case per line: `frame HEX JSON`, or
`body NAME HEX JSON`. Each is decoded and compared with the JSON of the same message. The exit status is 1 if any differs.

usage: wharf_decoder.py docs/protocol.md < CASES
"""

import json
import re
import struct
import sys

FLAG_EXTENSIONS, FLAG_REPLY, FLAG_ERROR = 1, 2, 4


class Malformed(Exception):
    """The bytes are not what the page describes."""


class Page:
    """The tables of the page."""

    def __init__(self, text):
        self.kinds = {}
        self.bodies = {}
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
        """Returns the fields of the header and the body of a frame, which must be all of the bytes."""
        length, kind, flags, version, sequence, mark = struct.unpack_from("<IHBBQQ", data)
        if length != len(data) - 4 or flags & ~7 or version != 1:
            raise Malformed(f"header {data[:24].hex()}")
        request, reply = self.kinds[kind]
        name = "Fault" if flags & FLAG_ERROR else reply if flags & FLAG_REPLY else request
        reader = Reader(self, data[24:])
        body = reader.body(name)
        if flags & FLAG_EXTENSIONS:
            reader.extensions()
        reader.end()
        return {"kind": kind, "flags": flags, "sequence": sequence, "lowest_unacknowledged": mark}, body

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
        count = 0
        while self.at < len(self.data):
            _tag, size = struct.unpack("<HI", self.take(6))
            self.take(size)
            count += 1
        if not 1 <= count <= 16:
            raise Malformed(f"{count} extensions")

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
            return self.take(size).decode("utf-8")
        if kind == "bool":
            return {0: False, 1: True}[self.take(1)[0]]
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
    failed = 0
    for case, line in enumerate(sys.stdin, 1):
        form, rest = line.rstrip("\n").split(" ", 1)
        if form == "frame":
            data, expected = rest.split(" ", 1)
            read = lambda: page.read_frame(bytes.fromhex(data))[1]
        else:
            name, data, expected = rest.split(" ", 2)
            read = lambda: page.read_body(name, bytes.fromhex(data))
        try:
            found = read()
        except (Malformed, KeyError, UnicodeDecodeError) as error:
            found = f"{type(error).__name__}: {error}"
        if found != json.loads(expected):
            failed += 1
            print(f"case {case}: {line.rstrip()}\n  decoded: {json.dumps(found)}", file=sys.stderr)
    print(f"{case} cases, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
