//! What hostile peers send.

use wharf_core::rng::Rng;
use wharf_net::codec::{HEADER_BYTES, Header, encode_body, encode_frame};
use wharf_net::protocol::{
    BODY_VERSION, FRAME_BYTES_MAX, Hello, Kind, ListRequest, VERSION_MAX, VERSION_MIN,
};

/// The nodes that a list may have at most.
const LIST_NODES: u16 = 1024;
/// The bytes of a malformed hello.
const NOISE_BYTES: usize = 512;

/// The header of a request. All earlier ones are acknowledged.
fn header(kind: Kind, sequence: u64) -> Header {
    Header {
        kind: kind.number(),
        version: BODY_VERSION,
        sequence,
        lowest_unacknowledged: sequence,
        ..Header::default()
    }
}

/// A frame with these bytes as its body.
fn frame(header: Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_frame(header, &[], &mut bytes, |out| out.extend_from_slice(body));
    bytes
}

/// A hello as it should be.
pub(super) fn hello() -> Vec<u8> {
    let body = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        client: "wharf-bench hostile".to_owned(),
        resume: None,
    };
    let mut bytes = Vec::new();
    encode_body(&body, &mut bytes);
    frame(header(Kind::Hello, 0), &bytes)
}

/// Half of a hello.
pub(super) fn half_hello() -> Vec<u8> {
    let mut bytes = hello();
    bytes.truncate(bytes.len() / 2);
    bytes
}

/// What is sent instead of a hello: another thing for each number, in turns.
pub(super) fn no_hello(number: u64) -> Vec<u8> {
    let mut rng = Rng::new(number);
    let noise: Vec<u8> = (0..NOISE_BYTES).map(|_| rng.next_u64() as u8).collect();
    match number % 4 {
        0 => noise,
        // A hello whose body is noise.
        1 => frame(header(Kind::Hello, 0), &noise),
        // A request before the hello.
        2 => frame(header(Kind::Place, 1), &noise),
        // A kind that there is not.
        _ => frame(Header { kind: u16::MAX, ..header(Kind::Hello, 0) }, &noise),
    }
}

/// The header of a frame that claims so many bytes.
fn claiming(kind: Kind, length: u32) -> Vec<u8> {
    let mut bytes = frame(header(kind, 1), &[]);
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// A frame that claims 4 GiB.
pub(super) fn length_bomb() -> Vec<u8> {
    claiming(Kind::Place, u32::MAX)
}

/// The greatest frame that there may be, without its last byte.
pub(super) fn endless_frame() -> Vec<u8> {
    let mut bytes = claiming(Kind::PlaceBatch, FRAME_BYTES_MAX);
    bytes.resize(4 + FRAME_BYTES_MAX as usize - 1, 0);
    bytes
}

/// A request with a list that claims to be endless.
pub(super) fn body_bomb(sequence: u64) -> Vec<u8> {
    // The mark of a number of eight bytes, and the greatest such number of elements that a list can claim.
    let claim = [253, 255, 255, 255, 255, 255, 255, 255, 127];
    frame(header(Kind::PlaceBatch, sequence), &claim)
}

/// Requests for lists of nodes, this many, from a sequence on. They acknowledge nothing.
pub(super) fn lists(from: u64, count: u64) -> Vec<u8> {
    let mut body = Vec::new();
    encode_body(&ListRequest { after: 0, limit: LIST_NODES }, &mut body);
    let request = |sequence| Header { lowest_unacknowledged: 1, ..header(Kind::ListNodes, sequence) };
    (from..from + count).flat_map(|sequence| frame(request(sequence), &body)).collect()
}

const _: () = assert!(FRAME_BYTES_MAX as usize > HEADER_BYTES);

#[cfg(test)]
mod tests {
    use wharf_net::codec::{FrameError, decode_body, decode_frame};
    use wharf_net::protocol::PlaceBatch;

    use super::*;

    fn is_hello(bytes: &[u8]) -> bool {
        let Ok(Some(frame)) = decode_frame(bytes, FRAME_BYTES_MAX) else { return false };
        frame.header.kind == Kind::Hello.number()
            && decode_body::<Hello>(frame.payload).is_ok_and(|(_, taken)| taken == frame.payload.len())
    }

    #[test]
    fn only_the_hello_is_one() {
        assert!(is_hello(&hello()));
        assert_eq!(decode_frame(&half_hello(), FRAME_BYTES_MAX), Ok(None));
        for number in 0..400 {
            assert!(!is_hello(&no_hello(number)), "{number}");
        }
    }

    #[test]
    fn a_length_bomb_is_too_long_and_an_endless_frame_lacks_its_end() {
        let bomb = length_bomb();
        let refused = decode_frame(&bomb, FRAME_BYTES_MAX);
        assert!(matches!(refused, Err(FrameError::TooLong { length: u32::MAX, .. })), "{refused:?}");
        let mut endless = endless_frame();
        assert_eq!(decode_frame(&endless, FRAME_BYTES_MAX), Ok(None));
        endless.push(0);
        let whole = decode_frame(&endless, FRAME_BYTES_MAX).unwrap().unwrap();
        assert_eq!(whole.bytes, endless.len());
    }

    #[test]
    fn a_body_bomb_is_a_frame_with_a_body_that_cannot_be_read() {
        let bytes = body_bomb(7);
        let frame = decode_frame(&bytes, FRAME_BYTES_MAX).unwrap().unwrap();
        assert_eq!((frame.header.sequence, frame.bytes), (7, bytes.len()));
        assert!(decode_body::<PlaceBatch>(frame.payload).is_err());
    }

    #[test]
    fn lists_are_asked_for_one_after_the_other() {
        let bytes = lists(5, 3);
        let mut rest = &bytes[..];
        for sequence in 5..8 {
            let frame = decode_frame(rest, FRAME_BYTES_MAX).unwrap().unwrap();
            let (list, _) = decode_body::<ListRequest>(frame.payload).unwrap();
            assert_eq!((frame.header.sequence, list.limit), (sequence, LIST_NODES));
            rest = &rest[frame.bytes..];
        }
        assert!(rest.is_empty());
    }
}
