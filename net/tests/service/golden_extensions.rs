//! The wire format byte for byte, as in `golden_frames.rs`: frames with extensions, and bytes that must be refused.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wharf_net::codec::{Extension, FLAG_REPLY, decode_body, decode_frame, split_extensions};
use wharf_net::protocol::*;

use crate::harness::golden::{bytes_of, check_frame, read_by_page, refused};

const RELEASE: ReleaseRequest = ReleaseRequest {
    allocation: WireAllocation { incarnation: 3, partition: 255, sequence: 70_000, tenant: 4 },
};
/// Two answered waits.
const ACKNOWLEDGED: Extension<'_> =
    Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &[2, 5, 0xfb, 0x2c, 0x01] };
/// 50 ms.
const DEADLINE: Extension<'_> = Extension { tag: EXTENSION_DEADLINE, bytes: &[0xfc, 0x80, 0xf0, 0xfa, 0x02] };
/// The largest tag that may be ignored.
const IGNORABLE: Extension<'_> = Extension { tag: 0x7fff, bytes: b"later" };
/// The smallest tag, without content.
const EMPTY: Extension<'_> = Extension { tag: 0, bytes: &[] };
const CRITICAL: Extension<'_> = Extension { tag: 0x8001, bytes: b"x" };

/// The tests that check golden bytes.
pub(crate) const TESTS: &[fn()] = &[
    known_extensions_are_written_as_they_always_were,
    unknown_extensions_that_may_be_ignored_are_skipped,
    an_unknown_critical_extension_is_refused,
    a_frame_that_is_cut_off_is_not_read,
    malformed_frames_are_refused,
    malformed_bodies_are_refused,
];

#[test]
fn known_extensions_are_written_as_they_always_were() {
    let hello = Hello { version_min: 1, version_max: 2, client: "c".to_owned(), resume: None };
    let none = Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &[0] };
    check_frame(
        Kind::Hello,
        0,
        &[none],
        &hello,
        "200000000100010104030201000000000b0a000000000000 0102016300 10000100000000",
    );
    check_frame(
        Kind::Release,
        0,
        &[ACKNOWLEDGED],
        &RELEASE,
        "290000000400010104030201000000000b0a000000000000 03fbff00fc7011010004 1000050000000205fb2c01",
    );
    check_frame(
        Kind::Release,
        0,
        &[DEADLINE],
        &RELEASE,
        "290000000400010104030201000000000b0a000000000000 03fbff00fc7011010004 110005000000fc80f0fa02",
    );
    let acknowledged = decode_body::<Acknowledged>(ACKNOWLEDGED.bytes).expect("a body");
    assert_eq!(acknowledged, (Acknowledged { sequences: vec![5, 300] }, 5));
    let deadline = decode_body::<Deadline>(DEADLINE.bytes).expect("a body");
    assert_eq!(deadline, (Deadline { within: 50_000_000 }, 5));
}

#[test]
fn unknown_extensions_that_may_be_ignored_are_skipped() {
    check_frame(
        Kind::Release,
        FLAG_REPLY,
        &[IGNORABLE],
        &ReleaseReply::default(),
        "220000000400030104030201000000000b0a000000000000 000000 ff7f050000006c61746572",
    );
    // Those behind them are read.
    check_frame(
        Kind::Release,
        0,
        &[IGNORABLE, DEADLINE, EMPTY, ACKNOWLEDGED],
        &RELEASE,
        "450000000400010104030201000000000b0a000000000000 03fbff00fc7011010004 \
         ff7f050000006c61746572 110005000000fc80f0fa02 000000000000 1000050000000205fb2c01",
    );
}

/// The code splits the frame, and anyone who reads it must refuse it. The decoder in Python does.
#[test]
fn an_unknown_critical_extension_is_refused() {
    assert!(CRITICAL.is_critical() && !IGNORABLE.is_critical());
    check_frame(
        Kind::Release,
        0,
        &[IGNORABLE, CRITICAL],
        &RELEASE,
        "300000000400010104030201000000000b0a000000000000 03fbff00fc7011010004 \
         ff7f050000006c61746572 01800100000078",
    );
}

/// Returns why bytes are not a frame of [`RELEASE`], or `None` if they are one.
fn why_refused(bytes: &[u8]) -> Option<String> {
    let frame = match decode_frame(bytes, FRAME_BYTES_MAX) {
        Ok(Some(frame)) => frame,
        Ok(None) => return Some("not complete".to_owned()),
        Err(error) => return Some(error.to_string()),
    };
    if frame.bytes != bytes.len() {
        return Some("longer than its frame".to_owned());
    }
    if Kind::from_number(frame.header.kind) != Some(Kind::Release) || frame.header.version != BODY_VERSION {
        return Some("another kind or version".to_owned());
    }
    match decode_body::<ReleaseRequest>(frame.payload) {
        Ok((body, taken)) => {
            assert_eq!(body, RELEASE);
            split_extensions(&frame.header, &frame.payload[taken..]).err()
        }
        Err(error) => Some(error.to_string()),
    }
}

/// Has the code and the decoder in Python refuse frames, each for its reason.
#[track_caller]
fn check_refused(frames: &[(Vec<u8>, &str, String)]) {
    let mut cases = Vec::new();
    for (bytes, why, python) in frames {
        let found = why_refused(bytes);
        assert!(
            found.as_ref().is_some_and(|found| found.contains(why)),
            "{bytes:02x?}: {found:?}, not {why}"
        );
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        cases.push(format!("frame {hex} {}", refused(python)));
    }
    read_by_page(&cases);
}

const WHOLE: &str =
    "290000000400010104030201000000000b0a00000000000003fbff00fc70110100041000050000000205fb2c01";

/// A stream may bring a frame in parts, so the code waits for the rest. Nothing of a part is read before.
#[test]
fn a_frame_that_is_cut_off_is_not_read() {
    let whole = bytes_of(WHOLE);
    assert_eq!(why_refused(&whole), None);
    let cut = |count: usize| {
        let python = if count < 24 {
            format!("{count} bytes are no header")
        } else {
            format!("frame of 45 bytes, {count} are there")
        };
        (whole[..count].to_vec(), "not complete", python)
    };
    check_refused(&(0..whole.len()).map(cut).collect::<Vec<_>>());
}

#[test]
fn malformed_frames_are_refused() {
    // The length, kind, flags and version, then what follows the sequences.
    let cases = [
        ("1f000000 0400 00 01", "", "not complete", "frame of 35 bytes, 34 are there"),
        ("ffff0f00 0400 00 01", "", "not complete", "frame of 1048579 bytes, 34 are there"),
        ("1d000000 0400 00 01", "", "longer than its frame", "frame of 33 bytes, 34 are there"),
        ("13000000 0400 00 01", "", "shorter than its header", "length 19"),
        ("01001000 0400 00 01", "", "longer than the limit", "length 1048577"),
        ("1e000000 0400 08 01", "", "flags 0x08", "flags 8"),
        ("1e000000 0400 00 02", "", "another kind or version", "version 2"),
        ("1e000000 0e00 00 01", "", "another kind or version", "kind 14"),
        ("1f000000 0400 00 01", "00", "1 bytes follow the body", "1 bytes left"),
        ("21000000 0400 01 01", "100005", "head is cut off", "6 bytes wanted at 10, 3 left"),
        ("29000000 0400 01 01", "1000060000000205fb2c01", "says 6 bytes", "6 bytes wanted at 16, 5 left"),
        (
            "24000000 0400 01 01",
            "1000ffffffff",
            "says 4294967295 bytes",
            "4294967295 bytes wanted at 16, 0 left",
        ),
    ];
    let frame = |head: &str, tail: &str| {
        bytes_of(&format!("{head} 04030201000000000b0a000000000000 03fbff00fc7011010004 {tail}"))
    };
    assert_eq!(why_refused(&frame("1e000000 0400 00 01", "")), None);
    let mut frames: Vec<_> = cases
        .iter()
        .map(|(head, tail, why, python)| (frame(head, tail), *why, (*python).to_owned()))
        .collect();
    let too_many = frame("84000000 0400 01 01", &"000000000000".repeat(17));
    frames.push((too_many, "more than 16 extensions", "more than 16 extensions".to_owned()));
    assert_eq!(why_refused(&frame("7e000000 0400 01 01", &"000000000000".repeat(16))), None);
    let mut cut = frame("1d000000 0400 00 01", "");
    cut.pop();
    frames.push((cut, "ends before its last field", "1 bytes wanted at 9, 0 left".to_owned()));
    check_refused(&frames);
}

/// Has the code and the decoder in Python refuse the bytes of a body.
#[track_caller]
fn check_body_refused<T: Serialize + DeserializeOwned + std::fmt::Debug>(hex: &str, python: &str) {
    decode_body::<T>(&bytes_of(hex)).expect_err("it is no body");
    let name = std::any::type_name::<T>().rsplit("::").next().expect("a path");
    read_by_page(&[format!("body {name} {hex} {}", refused(python))]);
}

#[test]
fn malformed_bodies_are_refused() {
    check_body_refused::<RemoveQueueRequest>("027a", "2 bytes wanted at 1, 1 left");
    check_body_refused::<RemoveQueueRequest>("01ff", "text that is not UTF-8");
    check_body_refused::<RemoveQueueRequest>("fbfe00", "text of 254 bytes, at most 253 are allowed");
    check_body_refused::<StatusRequest>("02", "bool that is 2");
    check_body_refused::<ListGroupsRequest>("0200", "optional that begins with 2");
    check_body_refused::<CancelRequest>("ff", "integer that begins with 255");
    check_body_refused::<ReleaseRequest>("01fc010000000000", "4 bytes for 16 bits");
    check_body_refused::<Acknowledged>(
        "fd0000000000000010",
        "list of 1152921504606846976, at most 1024 are allowed",
    );
}
