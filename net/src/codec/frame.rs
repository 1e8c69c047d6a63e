//! Frames: a header of 24 bytes, a body, and extensions. All integers are little-endian.
//!
//! ```text
//! offset  size  field
//!      0     4  length of what follows this field
//!      4     2  kind
//!      6     1  flags: 1 has extensions, 2 reply, 4 error
//!      7     1  body version
//!      8     8  session sequence
//!     16     8  lowest unacknowledged sequence
//!     24     -  body
//!      -     -  extensions, if flagged: (tag u16, length u32, bytes) each
//! ```
//! An extension whose tag has its highest bit set is *critical*: a receiver that does not know it must refuse
//! the frame. Other unknown extensions are ignored.

use wharf_core::planted::{PlantedBug, is_planted};

use crate::protocol::{EXTENSIONS_MAX, FRAME_BYTES_MAX};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 24;
/// Bytes of a header that the length field counts.
const COUNTED_HEADER: u32 = HEADER_BYTES as u32 - 4;
/// Flag: extensions follow the body.
pub const FLAG_EXTENSIONS: u8 = 1;
/// Flag: the frame is the reply to the request of its sequence. Each reply has it, and no request.
pub const FLAG_REPLY: u8 = 2;
/// Flag: the body is a [`Fault`](crate::protocol::Fault). Only replies have it.
pub const FLAG_ERROR: u8 = 4;
const FLAGS_KNOWN: u8 = FLAG_EXTENSIONS | FLAG_REPLY | FLAG_ERROR;
/// The bit that marks a critical extension.
const TAG_CRITICAL: u16 = 0x8000;

/// The header of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The message kind's number.
    pub kind: u16,
    /// `FLAG_*`.
    pub flags: u8,
    /// The version of the body.
    pub version: u8,
    /// The sequence of the request within its session.
    pub sequence: u64,
    /// All lower sequences are answered and acknowledged.
    pub lowest_unacknowledged: u64,
}

impl Header {
    /// Checks that this is the header of a request.
    ///
    /// # Errors
    /// Fails if it is marked as a reply or a fault.
    #[inline]
    pub fn check_request(&self) -> Result<(), FrameError> {
        let Self { flags, .. } = *self;
        if flags & (FLAG_REPLY | FLAG_ERROR) == 0 { Ok(()) } else { Err(FrameError::NoRequest { flags }) }
    }

    /// Checks that this is the header of a reply.
    ///
    /// # Errors
    /// Fails if it is not marked as one.
    #[inline]
    pub fn check_reply(&self) -> Result<(), FrameError> {
        let Self { flags, .. } = *self;
        if flags & FLAG_REPLY == 0 { Err(FrameError::NoReply { flags }) } else { Ok(()) }
    }

    /// Returns its bytes, with a length of 0.
    #[inline]
    fn bytes(&self) -> [u8; HEADER_BYTES] {
        // One array, because each reply has one: appended field by field, it took four checks of the room.
        let mut bytes = [0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&self.kind.to_le_bytes());
        bytes[6] = self.flags;
        bytes[7] = self.version;
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..].copy_from_slice(&self.lowest_unacknowledged.to_le_bytes());
        bytes
    }
}

/// A frame in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRef<'a> {
    /// The frame's header.
    pub header: Header,
    /// Body and extensions.
    pub payload: &'a [u8],
    /// Bytes of the whole frame.
    pub bytes: usize,
}

/// Why bytes are not a frame. The stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The frame is longer than allowed.
    #[error("a frame of {length} bytes is longer than the limit of {max}: send less per message")]
    TooLong {
        /// The length in the frame.
        length: u32,
        /// The limit.
        max: u32,
    },
    /// The frame is shorter than a header.
    #[error(
        "a frame of {length} bytes is shorter than its header, which has {COUNTED_HEADER} after the length"
    )]
    TooShort {
        /// The length in the frame.
        length: u32,
    },
    /// The frame has unknown flags.
    #[error("flags {flags:#04x} have bits that this version does not know")]
    Flags {
        /// The flags.
        flags: u8,
    },
    /// The frame should be a request, and is marked as a reply or a fault.
    #[error(
        "flags {flags:#04x} mark a reply, and this is no request: send requests without the flags 2 and 4"
    )]
    NoRequest {
        /// The flags.
        flags: u8,
    },
    /// The frame should be a reply, and is not marked as one.
    #[error("flags {flags:#04x} do not mark a reply, and requests have no others")]
    NoReply {
        /// The flags.
        flags: u8,
    },
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the caller checked the length")
}

/// Updates the lowest unacknowledged sequence in a frame that was encoded earlier.
///
/// # Panics
/// Panics if `frame` is shorter than a header.
pub(crate) fn acknowledge_in_frame(frame: &mut [u8], lowest_unacknowledged: u64) {
    frame[16..HEADER_BYTES].copy_from_slice(&lowest_unacknowledged.to_le_bytes());
}

/// Returns the frame at the front of `bytes`, or `None` if it is not complete yet.
///
/// # Errors
/// Fails if the bytes are not a frame, or if the frame is longer than `max`.
#[inline]
pub fn decode_frame(bytes: &[u8], max: u32) -> Result<Option<FrameRef<'_>>, FrameError> {
    if bytes.len() < 4 {
        return Ok(None);
    }
    let length = u32::from_le_bytes(array(bytes, 0));
    if length > max {
        return Err(FrameError::TooLong { length, max });
    }
    if length < COUNTED_HEADER {
        return Err(FrameError::TooShort { length });
    }
    let total = 4 + length as usize;
    if bytes.len() < HEADER_BYTES {
        return Ok(None);
    }
    let header = Header {
        kind: u16::from_le_bytes(array(bytes, 4)),
        flags: bytes[6],
        version: bytes[7],
        sequence: u64::from_le_bytes(array(bytes, 8)),
        lowest_unacknowledged: u64::from_le_bytes(array(bytes, 16)),
    };
    if header.flags & !FLAGS_KNOWN != 0 {
        return Err(FrameError::Flags { flags: header.flags });
    }
    if bytes.len() < total {
        return Ok(None);
    }
    Ok(Some(FrameRef { header, payload: &bytes[HEADER_BYTES..total], bytes: total }))
}

/// Appends a frame to `out`: its header, the output of `body`, and `extensions`.
///
/// # Panics
/// Panics if the frame is longer than a frame may be. Our own messages respect their limits.
pub fn encode_frame(
    header: Header,
    extensions: &[Extension<'_>],
    out: &mut Vec<u8>,
    body: impl FnOnce(&mut Vec<u8>),
) {
    try_encode_frame(header, extensions, out, body)
        .unwrap_or_else(|error| panic!("our own messages are within their limits: {error}"));
}

/// Appends a frame to `out` like [`encode_frame`], but the body may be too long.
///
/// # Errors
/// Fails if the frame is longer than a frame may be. `out` is then unchanged.
#[inline]
pub fn try_encode_frame(
    mut header: Header,
    extensions: &[Extension<'_>],
    out: &mut Vec<u8>,
    body: impl FnOnce(&mut Vec<u8>),
) -> Result<(), FrameError> {
    if !extensions.is_empty() {
        header.flags |= FLAG_EXTENSIONS;
    }
    let start = out.len();
    out.extend_from_slice(&header.bytes());
    body(out);
    for extension in extensions {
        out.extend_from_slice(&extension.tag.to_le_bytes());
        let length = u32::try_from(extension.bytes.len()).expect("an extension is shorter than a frame");
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(extension.bytes);
    }
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    if length > FRAME_BYTES_MAX {
        out.truncate(start);
        return Err(FrameError::TooLong { length, max: FRAME_BYTES_MAX });
    }
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// An extension of a frame, for additions by later versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// The kind of extension. The highest bit marks it critical.
    pub tag: u16,
    /// The content.
    pub bytes: &'a [u8],
}

impl Extension<'_> {
    /// Returns whether a receiver that does not know the extension must refuse the frame.
    #[must_use]
    pub fn is_critical(&self) -> bool {
        self.tag & TAG_CRITICAL != 0
    }
}

/// Parses the extensions that follow a body. `bytes` is everything after the body.
///
/// # Errors
/// Returns what is wrong with them.
pub fn split_extensions<'a>(header: &Header, mut bytes: &'a [u8]) -> Result<Vec<Extension<'a>>, String> {
    if header.flags & FLAG_EXTENSIONS == 0 {
        return if bytes.is_empty() {
            Ok(Vec::new())
        } else {
            Err(format!(
                "{} bytes follow the body, and the frame is not flagged to have extensions",
                bytes.len()
            ))
        };
    }
    let mut extensions = Vec::new();
    while !bytes.is_empty() {
        if extensions.len() == EXTENSIONS_MAX {
            return Err(format!("more than {EXTENSIONS_MAX} extensions"));
        }
        if bytes.len() < 6 {
            return Err("an extension's head is cut off".to_owned());
        }
        let tag = u16::from_le_bytes(array(bytes, 0));
        let length = u32::from_le_bytes(array(bytes, 2)) as usize;
        let is_cut = bytes.len() - 6 < length;
        if is_cut && !is_planted(PlantedBug::ExtensionLengthUnchecked) {
            return Err(format!("extension {tag:#06x} says {length} bytes and has {}", bytes.len() - 6));
        }
        extensions.push(Extension { tag, bytes: &bytes[6..6 + length] });
        bytes = &bytes[6 + length..];
    }
    Ok(extensions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(header: Header, extensions: &[Extension<'_>], body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_frame(header, extensions, &mut out, |out| out.extend_from_slice(body));
        out
    }

    #[test]
    fn a_frame_is_laid_out_as_documented() {
        let header =
            Header { kind: 0x0102, flags: FLAG_REPLY, version: 1, sequence: 7, lowest_unacknowledged: 5 };
        let bytes = frame(header, &[Extension { tag: 0x8001, bytes: b"x" }], b"ab");
        let expected = [
            29, 0, 0, 0, 2, 1, 3, 1, 7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, b'a', b'b', 1, 0x80, 1,
            0, 0, 0, b'x',
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn bytes_that_are_no_frame_are_refused_at_once() {
        let long = (FRAME_BYTES_MAX + 1).to_le_bytes();
        assert!(matches!(decode_frame(&long, FRAME_BYTES_MAX), Err(FrameError::TooLong { .. })));
        assert!(matches!(decode_frame(&[19, 0, 0, 0], 100), Err(FrameError::TooShort { length: 19 })));
        let mut flagged = frame(Header::default(), &[], b"");
        flagged[6] = 0x80;
        assert!(matches!(decode_frame(&flagged, 100), Err(FrameError::Flags { flags: 0x80 })));
    }

    #[test]
    fn requests_and_replies_are_told_apart_by_their_flags() {
        for flags in 0..=FLAGS_KNOWN {
            let header = Header { flags, ..Header::default() };
            let is_request = [0, FLAG_EXTENSIONS].contains(&flags);
            assert_eq!(header.check_request().is_ok(), is_request, "{flags}");
            assert_eq!(header.check_reply().is_ok(), [2, 3, 6, 7].contains(&flags), "{flags}");
        }
    }

    #[test]
    fn a_message_that_is_too_long_leaves_nothing_behind() {
        let mut out = b"before".to_vec();
        let long = |out: &mut Vec<u8>| out.resize(out.len() + FRAME_BYTES_MAX as usize, 0);
        let refused = try_encode_frame(Header::default(), &[], &mut out, long);
        assert_eq!(refused, Err(FrameError::TooLong { length: FRAME_BYTES_MAX + 20, max: FRAME_BYTES_MAX }));
        assert_eq!(out, b"before");
    }

    #[test]
    fn broken_extensions_are_named() {
        let plain = Header::default();
        assert!(split_extensions(&plain, b"x").unwrap_err().contains("not flagged"));
        let flagged = Header { flags: FLAG_EXTENSIONS, ..plain };
        assert!(split_extensions(&flagged, b"12345").unwrap_err().contains("cut off"));
        assert!(split_extensions(&flagged, &[1, 0, 9, 0, 0, 0, 1]).unwrap_err().contains("says 9 bytes"));
        assert!(split_extensions(&flagged, &[0; 6 * 17]).unwrap_err().contains("more than 16"));
    }

    proptest! {
        #[test]
        fn frames_survive_and_any_prefix_waits(
            kind: u16, flags in 0u8..8, version: u8, sequence: u64, lowest: u64,
            body in proptest::collection::vec(any::<u8>(), 0..64), tag: u16, cut: prop::sample::Index,
        ) {
            let flags = flags & !FLAG_EXTENSIONS;
            let header = Header { kind, flags, version, sequence, lowest_unacknowledged: lowest };
            let bytes = frame(header, &[Extension { tag, bytes: b"ext" }], &body);
            let decoded = decode_frame(&bytes, FRAME_BYTES_MAX).unwrap().unwrap();
            prop_assert_eq!(decoded.header, Header { flags: flags | FLAG_EXTENSIONS, ..header });
            prop_assert_eq!(decoded.bytes, bytes.len());
            let extensions = split_extensions(&decoded.header, &decoded.payload[body.len()..]).unwrap();
            prop_assert_eq!(extensions, vec![Extension { tag, bytes: b"ext" }]);
            let prefix = &bytes[..cut.index(bytes.len())];
            prop_assert_eq!(decode_frame(prefix, FRAME_BYTES_MAX), Ok(None));
        }
    }
}
