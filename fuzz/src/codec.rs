//! Compares the codec with a second parser of the documented layout.
//!
//! The first byte of an input selects how the rest is used: a stream of frames, a body, the parts of a frame to
//! write, a block of extensions, or the choices that make a message. For any bytes, the codec must agree with the plain
//! parser in this module. Every message that it decodes, and every message that can be made, must survive being encoded
//! and decoded again.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use wharf_net::codec::{
    Extension, FLAG_EXTENSIONS, FrameError, HEADER_BYTES, Header, decode_body, decode_frame, encode_body,
    encode_frame, split_extensions,
};
use wharf_net::protocol::{EXTENSIONS_MAX, FRAME_BYTES_MAX, Fault, Kind, Message, MessageVisitor};

use crate::bodies::{Known, draw};
use crate::finding::{Finding, found};
use crate::sim::choices::Choices;

/// Runs the codec on arbitrary bytes.
///
/// # Errors
/// Returns the first difference between the codec and the layout.
pub fn run_codec(data: &[u8]) -> Result<(), Finding> {
    let Some((&choice, rest)) = data.split_first() else { return Ok(()) };
    match choice % 5 {
        0 => read_stream(rest),
        1 => read_body(rest),
        2 => write_frame(rest),
        3 => read_extensions(rest),
        _ => write_message(rest),
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Parses the frame at the start of `bytes` and returns its total length, header and payload.
///
/// The outer option is `None` for an invalid frame, the inner one for an incomplete frame.
fn plain_frame(bytes: &[u8]) -> Option<Option<(usize, Header, &[u8])>> {
    if bytes.len() < 4 {
        return Some(None);
    }
    let length = number(&bytes[..4]);
    if length > u64::from(FRAME_BYTES_MAX) || length < 20 {
        return None;
    }
    if bytes.len() < HEADER_BYTES {
        return Some(None);
    }
    if bytes[6] > 7 {
        return None;
    }
    let total = length as usize + 4;
    let header = Header {
        kind: number(&bytes[4..6]) as u16,
        flags: bytes[6],
        version: bytes[7],
        sequence: number(&bytes[8..16]),
        lowest_unacknowledged: number(&bytes[16..24]),
    };
    Some((bytes.len() >= total).then(|| (total, header, &bytes[24..total])))
}

fn read_stream(mut bytes: &[u8]) -> Result<(), Finding> {
    loop {
        let plain = plain_frame(bytes);
        match (decode_frame(bytes, FRAME_BYTES_MAX), plain) {
            (
                Err(FrameError::TooLong { .. } | FrameError::TooShort { .. } | FrameError::Flags { .. }),
                None,
            )
            | (Ok(None), Some(None)) => return Ok(()),
            (Ok(Some(frame)), Some(Some((total, header, payload))))
                if (frame.bytes, frame.header, frame.payload) == (total, header, payload) =>
            {
                let kind = Kind::from_number(header.kind);
                kind.map_or(Ok(()), |kind| read_message(kind, header, payload))?;
                bytes = &bytes[total..];
            }
            (read, plain) => return found(format!("the codec reads {read:?}, the layout says {plain:?}")),
        }
    }
}

fn read_body(bytes: &[u8]) -> Result<(), Finding> {
    let Some((&kind, body)) = bytes.split_first() else { return Ok(()) };
    let kind = Kind::ALL[usize::from(kind) % Kind::ALL.len()];
    read_message(kind, Header::default(), body)
}

/// Decodes a body as the request and as the reply of its kind, and as a fault.
fn read_message(kind: Kind, header: Header, payload: &[u8]) -> Result<(), Finding> {
    survives::<Fault>(header, payload)?;
    kind.visit(Survives { header, payload })
}

struct Survives<'a> {
    header: Header,
    payload: &'a [u8],
}

impl MessageVisitor for Survives<'_> {
    type Output = Result<(), Finding>;

    fn visit<M: Message>(self) -> Self::Output {
        survives::<M::Request>(self.header, self.payload)?;
        survives::<M::Reply>(self.header, self.payload)?;
        is_the_same_by_kind::<M>(self.payload)
    }
}

/// Checks that what a kind has of its own, for requests and replies that are frequent, does what the general encoder and
/// decoder do.
fn is_the_same_by_kind<M: Message>(payload: &[u8]) -> Result<(), Finding> {
    let read = M::read_reply(payload);
    let expected = decode_body::<M::Reply>(payload).map(|(reply, _)| reply);
    if read != expected {
        return found(format!("a reply is read as {read:?} by its kind, and as {expected:?} by the decoder"));
    }
    let Ok((request, _)) = decode_body::<M::Request>(payload) else { return Ok(()) };
    let mut written = Vec::new();
    let mut expected = Vec::new();
    M::write_request(&request, &mut written);
    encode_body(&request, &mut expected);
    if written != expected {
        return found(format!(
            "{request:?} is written as {written:?} by its kind, and as {expected:?} by the encoder"
        ));
    }
    Ok(())
}

/// Checks that a decoded message can be encoded and decoded again without a change.
fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    header: Header,
    payload: &[u8],
) -> Result<(), Finding> {
    let Ok((message, taken)) = decode_body::<T>(payload) else { return Ok(()) };
    compare_extensions(&header, &payload[taken..])?;
    let mut written = Vec::new();
    encode_body(&message, &mut written);
    match decode_body::<T>(&written) {
        Ok((again, all)) if again == message && all == written.len() => Ok(()),
        other => found(format!("{message:?} was written, and read again as {other:?}")),
    }
}

/// Makes a request, a reply or a fault, and checks that it survives. Then cuts and changes it.
fn write_message(bytes: &[u8]) -> Result<(), Finding> {
    let mut choices = Choices::Given(bytes);
    let kind = *choices.pick(Kind::ALL);
    kind.visit(Made(&mut choices))
}

struct Made<'c, 'a>(&'c mut Choices<'a>);

impl MessageVisitor for Made<'_, '_> {
    type Output = Result<(), Finding>;

    fn visit<M: Message>(self) -> Self::Output {
        match self.0.below(8) {
            0 => made_survives::<Fault>(self.0, |_| Ok(())),
            1..4 => made_survives::<M::Reply>(self.0, is_the_same_by_kind::<M>),
            _ => made_survives::<M::Request>(self.0, is_the_same_by_kind::<M>),
        }
    }
}

fn made_survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    choices: &mut Choices<'_>,
    check: impl Fn(&[u8]) -> Result<(), Finding>,
) -> Result<(), Finding> {
    let made: Option<T> = draw(choices, &Known::default());
    let Some(message) = made else { return found("a message is drawn beyond a bound") };
    let mut written = Vec::new();
    encode_body(&message, &mut written);
    match decode_body::<T>(&written) {
        Ok((again, all)) if again == message && all == written.len() => {}
        other => return found(format!("{message:?} was written, and read as {other:?}")),
    }
    check(&written)?;
    // Of a body that is cut off, or is another one, nothing is known. What is read of it must survive too.
    if !written.is_empty() {
        let cut = choices.place(written.len());
        if let Ok((read, _)) = decode_body::<T>(&written[..cut]) {
            return found(format!("{message:?} was cut off at byte {cut}, and read as {read:?}"));
        }
        written[cut] = choices.below(256) as u8;
        check(&written)?;
    }
    survives::<T>(Header { flags: FLAG_EXTENSIONS, ..Header::default() }, &written)
}

fn read_extensions(bytes: &[u8]) -> Result<(), Finding> {
    compare_extensions(&Header { flags: FLAG_EXTENSIONS, ..Header::default() }, bytes)
}

/// Parses the extensions as the layout describes them. Returns `None` when the block is invalid.
fn plain_extensions(flagged: bool, mut bytes: &[u8]) -> Option<Vec<(u16, &[u8])>> {
    let mut extensions = Vec::new();
    while !bytes.is_empty() {
        let head = bytes.get(..6).filter(|_| flagged && extensions.len() < EXTENSIONS_MAX)?;
        let tag = number(&head[..2]) as u16;
        let length = number(&head[2..]) as usize;
        extensions.push((tag, bytes.get(6..)?.get(..length)?));
        bytes = &bytes[6 + length..];
    }
    Some(extensions)
}

fn compare_extensions(header: &Header, bytes: &[u8]) -> Result<(), Finding> {
    let plain = plain_extensions(header.flags & FLAG_EXTENSIONS != 0, bytes);
    let read = split_extensions(header, bytes);
    let tags: Option<Vec<_>> = read.as_ref().ok().map(|list| list.iter().map(|e| (e.tag, e.bytes)).collect());
    if tags != plain {
        return found(format!("the codec reads extensions {read:?}, the layout says {plain:?}"));
    }
    let critical =
        read.iter().flatten().find(|extension| extension.is_critical() != (extension.tag >= 0x8000));
    critical.map_or(Ok(()), |extension| {
        found(format!("extension {:#06x} is taken for what it is not", extension.tag))
    })
}

/// Encodes a frame from arbitrary parts and decodes it again.
fn write_frame(bytes: &[u8]) -> Result<(), Finding> {
    if bytes.len() < 24 {
        return Ok(());
    }
    let (head, rest) = bytes.split_at(24);
    let header = Header {
        kind: number(&head[..2]) as u16,
        flags: head[2] & 6,
        version: head[3],
        sequence: number(&head[4..12]),
        lowest_unacknowledged: number(&head[12..20]),
    };
    let (body, block) = rest.split_at(usize::from(head[20]).min(rest.len()));
    let size = usize::from(head[21]).max(1);
    let chunks = block.chunks(size).take(EXTENSIONS_MAX);
    let extensions: Vec<_> =
        chunks.zip(1u16..).map(|(bytes, i)| Extension { tag: i.wrapping_mul(0x3001), bytes }).collect();
    let mut written = Vec::new();
    encode_frame(header, &extensions, &mut written, |out| out.extend_from_slice(body));
    let frame = decode_frame(&written, FRAME_BYTES_MAX).map_err(|error| error.to_string())?;
    let frame = frame.ok_or("a frame that was written is not read whole")?;
    let flags = header.flags | if extensions.is_empty() { 0 } else { FLAG_EXTENSIONS };
    if frame.header != (Header { flags, ..header }) || frame.bytes != written.len() {
        return found(format!("{header:?} was written, and read again as {:?}", frame.header));
    }
    let read = split_extensions(&frame.header, &frame.payload[body.len()..])?;
    if &frame.payload[..body.len()] != body || read != extensions {
        return found("a frame's content was not read as it was written");
    }
    Ok(())
}
