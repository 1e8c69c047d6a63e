//! Messages byte for byte.

use std::cell::RefCell;
use std::io::Write;
use std::process::{Command, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;
use wharf_net::codec::{
    Extension, FLAG_ERROR, FLAG_REPLY, Header, decode_body, decode_frame, encode_body, encode_frame,
    split_extensions,
};
use wharf_net::protocol::{
    Acknowledged, BODY_VERSION, Deadline, EXTENSION_ACKNOWLEDGED, EXTENSION_DEADLINE, FRAME_BYTES_MAX, Kind,
    Message,
};

/// What tests of golden bytes have checked.
#[derive(Default)]
pub struct Checked {
    /// The kinds of messages, as request (false) or reply (true).
    pub kinds: Vec<(Kind, bool)>,
    /// The bytes, each with what they mean: lines as the decoder in Python reads them.
    pub cases: Vec<String>,
}

thread_local! {
    /// What this thread has checked, while [`checked_by`] collects it.
    static CHECKED: RefCell<Option<Checked>> = const { RefCell::new(None) };
}

/// Runs tests of golden bytes. Returns what they check. The decoder in Python does not run, because it does when these tests
/// run on their own.
pub fn checked_by(tests: &[&[fn()]]) -> Checked {
    CHECKED.set(Some(Checked::default()));
    for test in tests.iter().copied().flatten() {
        test();
    }
    CHECKED.take().expect("it was set above")
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of hex digits. White space between them is skipped.
pub fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16);
    digits.chunks(2).map(|pair| byte(pair).expect("two hex digits")).collect()
}

/// Checks the bytes of a body, and that they are read back unchanged.
#[track_caller]
pub fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(body: &T, expected: &str) {
    check_bytes(body, expected);
    let name = std::any::type_name::<T>();
    let name = name.rsplit("::").next().expect("a path");
    read_by_page(&[format!("body {name} {expected} {}", json(body))]);
}

/// Checks the bytes of a request's body, and that its frame is read back unchanged.
#[track_caller]
pub fn check_request<M: Message>(body: &M::Request, expected: &str) {
    check_bytes(body, expected);
    let mut bytes = Vec::new();
    M::write_request(body, &mut bytes);
    assert_eq!(hex(&bytes), expected, "the client writes it with code of its own");
    check_whole(M::KIND, 0, &[], body, &bytes_in_frame(M::KIND, 0, &[], body));
}

/// Checks the bytes of a reply's body, and that its frame is read back unchanged.
#[track_caller]
pub fn check_reply<M: Message>(body: &M::Reply, expected: &str) {
    check_bytes(body, expected);
    let read = M::read_reply(&bytes_of(expected));
    assert_eq!(read.as_ref(), Ok(body), "the client reads it with code of its own");
    check_whole(M::KIND, FLAG_REPLY, &[], body, &bytes_in_frame(M::KIND, FLAG_REPLY, &[], body));
}

/// Checks the bytes of a frame, and that they are read back unchanged.
#[track_caller]
pub fn check_frame<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    kind: Kind,
    flags: u8,
    extensions: &[Extension<'_>],
    body: &T,
    expected: &str,
) {
    let bytes = bytes_in_frame(kind, flags, extensions, body);
    assert_eq!(hex(&bytes), hex(&bytes_of(expected)));
    check_whole(kind, flags, extensions, body, &bytes);
}

#[track_caller]
fn check_bytes<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(body: &T, expected: &str) {
    let mut bytes = Vec::new();
    encode_body(body, &mut bytes);
    assert_eq!(hex(&bytes), expected);
    let (read, taken) = decode_body::<T>(&bytes).expect("a body");
    assert_eq!((&read, taken), (body, bytes.len()));
}

fn bytes_in_frame<T: Serialize>(kind: Kind, flags: u8, extensions: &[Extension<'_>], body: &T) -> Vec<u8> {
    let header = Header {
        kind: kind.number(),
        flags,
        version: BODY_VERSION,
        sequence: 0x0102_0304,
        lowest_unacknowledged: 0x0A0B,
    };
    let mut bytes = Vec::new();
    encode_frame(header, extensions, &mut bytes, |out| encode_body(body, out));
    bytes
}

/// Checks that a frame is read as what it was made of, here and by the decoder in Python.
#[track_caller]
fn check_whole<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    kind: Kind,
    flags: u8,
    extensions: &[Extension<'_>],
    body: &T,
    bytes: &[u8],
) {
    let frame = decode_frame(bytes, FRAME_BYTES_MAX).expect("a frame").expect("all of it");
    assert_eq!(frame.bytes, bytes.len());
    let Header { kind: number, flags: read_flags, version, sequence, lowest_unacknowledged } = frame.header;
    assert_eq!((number, version), (kind.number(), BODY_VERSION));
    let (read, taken) = decode_body::<T>(frame.payload).expect("a body");
    assert_eq!(&read, body);
    let read = split_extensions(&frame.header, &frame.payload[taken..]).expect("extensions");
    assert_eq!(read, extensions);
    if flags & FLAG_ERROR == 0 {
        CHECKED.with_borrow_mut(|checked| {
            if let Some(checked) = checked {
                checked.kinds.push((kind, flags & FLAG_REPLY != 0));
            }
        });
    }
    let critical = extensions.iter().find(|extension| extension.is_critical());
    let expected = critical.map_or_else(
        || {
            let extensions: Vec<String> = extensions.iter().map(extension_json).collect();
            format!(
                "{{\"kind\":{number},\"flags\":{read_flags},\"sequence\":{sequence},\
                 \"lowest_unacknowledged\":{lowest_unacknowledged},\"body\":{},\"extensions\":[{}]}}",
                json(body),
                extensions.join(",")
            )
        },
        |critical| refused(&format!("critical extension {:#06x}", critical.tag)),
    );
    read_by_page(&[format!("frame {} {expected}", hex(bytes))]);
}

/// Returns an extension as the decoder in Python shows it: one that the page does not describe has no body.
fn extension_json(extension: &Extension<'_>) -> String {
    let body = match extension.tag {
        EXTENSION_ACKNOWLEDGED => json(&decode_body::<Acknowledged>(extension.bytes).expect("a body").0),
        EXTENSION_DEADLINE => json(&decode_body::<Deadline>(extension.bytes).expect("a body").0),
        _ => "null".to_owned(),
    };
    format!("{{\"tag\":{},\"body\":{body}}}", extension.tag)
}

/// Returns what the decoder in Python says of bytes that it refuses.
pub fn refused(why: &str) -> String {
    format!("{{\"refused\":\"{why}\"}}")
}

/// Returns a body as JSON, with the names of its fields.
fn json<T: Serialize>(body: &T) -> String {
    serde_json::to_string(body).expect("bodies are plain data")
}

/// Has a decoder in Python read cases, one per line: frames and bodies, or bytes that it must refuse.
#[track_caller]
pub fn read_by_page(cases: &[String]) {
    let is_collected = CHECKED.with_borrow_mut(|checked| {
        let checked = checked.as_mut();
        checked.map(|checked| checked.cases.extend_from_slice(cases)).is_some()
    });
    if !is_collected {
        decode(&cases.join("\n"), cases.len());
    }
}

/// Has the decoder in Python read an input with this number of cases. It knows only the page of the protocol. Skipped without
/// Python, unless `WHARF_REQUIRE_PYTHON` is set.
#[track_caller]
pub fn decode(cases: &str, count: usize) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut python = Command::new("python3");
    python.current_dir(root).args(["net/tests/decoder/wharf_decoder.py", "docs/protocol.md"]);
    let started = python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut decoder = match started {
        Ok(decoder) => decoder,
        Err(error) if std::env::var_os("WHARF_REQUIRE_PYTHON").is_none() => {
            return println!("skipped: the decoder in Python does not run: {error}");
        }
        Err(error) => panic!("the decoder in Python must run: {error}"),
    };
    let mut input = decoder.stdin.take().expect("it is piped");
    input.write_all(cases.as_bytes()).expect("it reads all cases");
    drop(input);
    let ended = decoder.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    let all_agree = format!("{count} cases, 0 differ\n");
    assert!(ended.status.success() && ended.stdout == all_agree.as_bytes(), "{said}");
}
