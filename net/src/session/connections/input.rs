//! Bytes of a stream cut into frames, and the faults for frames that cannot be read.

use std::cell::{Cell, RefCell};

use serde::de::DeserializeOwned;
use wharf_core::time::Time;

use super::{Asker, InputEnd};
use crate::codec::{
    BodyError, FLAG_ERROR, FLAG_EXTENSIONS, FLAG_REPLY, FrameError, FrameRef, Header, decode_body,
    decode_frame, encode_body, encode_frame, split_extensions,
};
use crate::limits::INPUT_KEPT_BYTES_MAX;
use crate::protocol::{
    Acknowledged, BODY_VERSION, Deadline, EXTENSION_ACKNOWLEDGED, EXTENSION_DEADLINE, FRAME_BYTES_MAX, Fault,
    Reason, VERSION_OF_DEADLINES,
};
use crate::weight::Weight;

/// A request frame, and the session data that its extensions carry.
pub(super) struct Asked<'a> {
    pub(super) frame: FrameRef<'a>,
    /// The waits that the request acknowledges. Set when the body is read.
    pub(super) acknowledged: RefCell<Option<Acknowledged>>,
    /// The version of the protocol that both sides speak.
    version: u8,
    /// When its result is of no use any more. Set when the body is read.
    due: Cell<Time>,
    started: Time,
    /// An earlier start has begun it. It goes on at any time.
    pub(super) has_begun: bool,
}

impl<'a> Asked<'a> {
    /// A frame that was read at `now` from a peer with this version of the protocol.
    pub(super) fn new(frame: FrameRef<'a>, version: u8, now: Time) -> Self {
        let due = Cell::new(Time::NEVER);
        Self { frame, acknowledged: RefCell::new(None), version, due, started: now, has_begun: false }
    }

    /// Returns who asks, with the deadline of the request. Its body was read.
    pub(super) fn timed(&self, asker: Asker) -> Asker {
        Asker { due: self.due.get(), ..asker }
    }

    /// Returns when the request was read, if it has a deadline and its body was read.
    pub(super) fn timed_from(&self) -> Option<Time> {
        (self.due.get() != Time::NEVER).then_some(self.started)
    }

    /// Returns the payload if it is a body of the known version without extensions.
    pub(super) fn plain(&self) -> Option<&'a [u8]> {
        let Header { version, flags, .. } = self.frame.header;
        (version == BODY_VERSION && flags & FLAG_EXTENSIONS == 0).then_some(self.frame.payload)
    }

    /// Returns the weight that follows from the frame's kind and length.
    pub(super) fn weight(&self) -> Weight {
        Weight::of(self.frame.header.kind, self.frame.bytes)
    }
}

/// Received bytes.
#[derive(Debug, Default)]
pub(super) struct Input {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were consumed.
    taken: usize,
    /// The number of frames that were consumed.
    frames: u64,
}

impl Input {
    pub(super) fn extend<B: AsRef<[u8]>>(&mut self, chunks: &[B]) {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.reserve(chunks.iter().map(|chunk| chunk.as_ref().len()).sum());
        chunks.iter().for_each(|chunk| self.buffer.extend_from_slice(chunk.as_ref()));
    }

    /// Returns the next complete request, if any.
    ///
    /// # Errors
    /// The bytes are no frame, or one that is marked as a reply. The peer does not speak the protocol, so nothing after it
    /// is read either.
    pub(super) fn next(&mut self) -> Result<Option<FrameRef<'_>>, FrameError> {
        let frame = decode_frame(&self.buffer[self.taken..], FRAME_BYTES_MAX)?;
        if let Some(frame) = &frame {
            frame.header.check_request()?;
            self.taken += frame.bytes;
            self.frames += 1;
        }
        Ok(frame)
    }

    /// Returns the number of the frame of which a part is there, once there is no complete frame any more.
    pub(super) fn begun(&self) -> Option<u64> {
        (self.taken < self.buffer.len()).then_some(self.frames)
    }

    /// Frees the memory of a long frame once it was read, so that an idle connection keeps little.
    #[inline]
    pub(super) fn trim(&mut self) {
        if self.taken == self.buffer.len() && self.buffer.capacity() > INPUT_KEPT_BYTES_MAX {
            *self = Self { frames: self.frames, ..Self::default() };
        }
    }

    /// Checks, after the last frame, that the peer did not end the stream inside a frame.
    pub(super) fn check_end(&self, end: InputEnd) -> Option<Fault> {
        let left = self.buffer.len() - self.taken;
        if end != InputEnd::Finished || left == 0 {
            return None;
        }
        let message = format!("the stream ended inside a frame, after {left} bytes of it: send whole frames");
        Some(Fault::new(Reason::MalformedFrame, message))
    }
}

pub(super) fn frame_fault(error: FrameError) -> Fault {
    let reason = match error {
        FrameError::TooLong { .. } => Reason::FrameTooLong,
        FrameError::NoRequest { .. } => {
            return Fault::new(Reason::MalformedFrame, format!("{error}; the connection is closed"));
        }
        FrameError::TooShort { .. } | FrameError::Flags { .. } | FrameError::NoReply { .. } => {
            Reason::MalformedFrame
        }
    };
    Fault::new(reason, format!("{error}; the connection is closed, since what follows cannot be told apart"))
}

pub(super) fn fault_frame(kind: u16, sequence: u64, fault: &Fault) -> Vec<u8> {
    let flags = FLAG_REPLY | FLAG_ERROR;
    let header = Header { kind, flags, version: BODY_VERSION, sequence, ..Header::default() };
    let mut frame = Vec::new();
    encode_frame(header, &[], &mut frame, |out| encode_body(fault, out));
    frame
}

/// Returns the fault for a body that cannot be read.
pub(super) fn body_fault(error: BodyError) -> Fault {
    let message = error.to_string();
    Fault::of_field(Reason::MalformedBody, error.field, message)
}

/// Reads the version, body and extensions of a frame. All kinds of requests are read here, so what is too late already is
/// refused here.
pub(super) fn read_body<T: DeserializeOwned>(asked: &Asked<'_>) -> Result<T, Fault> {
    let frame = &asked.frame;
    let header = &frame.header;
    if header.version != BODY_VERSION {
        let Header { kind, version, .. } = header;
        let message =
            format!("body version {version} of kind {kind} is unknown: send version {BODY_VERSION}");
        return Err(Fault::new(Reason::UnknownVersion, message));
    }
    let malformed = |message: String| Fault::new(Reason::MalformedBody, message);
    let (body, taken) = decode_body::<T>(frame.payload).map_err(body_fault)?;
    let extensions = split_extensions(header, &frame.payload[taken..]).map_err(malformed)?;
    let acknowledged = extensions.iter().find(|extension| extension.tag == EXTENSION_ACKNOWLEDGED);
    if asked.version >= VERSION_OF_DEADLINES
        && !asked.has_begun
        && let Some(deadline) = extensions.iter().find(|extension| extension.tag == EXTENSION_DEADLINE)
        && let Ok((Deadline { within }, _)) = decode_body(deadline.bytes)
    {
        asked.due.set(asked.started.plus_nanos(within));
    }
    // The extensions are ignorable, so an unreadable one is ignored.
    if let Some(Ok((acknowledged, _))) = acknowledged.map(|extension| decode_body(extension.bytes)) {
        asked.acknowledged.replace(Some(acknowledged));
    }
    match extensions.iter().find(|extension| extension.is_critical()) {
        None if asked.due.get().is_missed(asked.started) => Err(Fault::late()),
        None => Ok(body),
        Some(critical) => {
            let message =
                format!("extension {:#06x} is critical and not known here: leave it out", critical.tag);
            Err(Fault::of_field(
                Reason::UnknownExtension,
                format!("extension {:#06x}", critical.tag),
                message,
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_may_be_cut_into_any_chunks() {
        let mut frames = Vec::new();
        for length in [0, 5, 300] {
            encode_frame(Header::default(), &[], &mut frames, |out| out.resize(out.len() + length, 7));
        }
        let payloads = |input: &mut Input| {
            let mut payloads = Vec::new();
            while let Some(frame) = input.next().expect("whole frames") {
                payloads.push(frame.payload.to_vec());
            }
            payloads
        };
        for size in [1, 7, 24, 1000] {
            let chunks: Vec<&[u8]> = frames.chunks(size).collect();
            let mut at_once = Input::default();
            at_once.extend(&chunks);
            assert_eq!(payloads(&mut at_once), [vec![], vec![7; 5], vec![7; 300]], "chunks of {size}");
            let mut one_by_one = Input::default();
            let taken: Vec<_> = chunks
                .iter()
                .flat_map(|chunk| {
                    one_by_one.extend(&[chunk]);
                    payloads(&mut one_by_one)
                })
                .collect();
            assert_eq!(taken, [vec![], vec![7; 5], vec![7; 300]], "chunks of {size}");
        }
    }

    #[test]
    fn a_frame_that_has_begun_has_a_number_until_it_is_complete() {
        let mut frame = Vec::new();
        encode_frame(Header::default(), &[], &mut frame, |out| out.resize(INPUT_KEPT_BYTES_MAX * 2, 0));
        let mut input = Input::default();
        for number in 0..3 {
            assert_eq!(input.begun(), None);
            for part in [&frame[..1], &frame[1..30]] {
                input.extend(&[part]);
                assert!(input.next().is_ok_and(|frame| frame.is_none()));
                assert_eq!(input.begun(), Some(number));
            }
            input.extend(&[&frame[30..]]);
            assert!(input.next().is_ok_and(|frame| frame.is_some()));
            input.trim();
        }
    }

    #[test]
    fn the_memory_of_a_long_frame_is_freed_once_it_was_read() {
        let mut long = Vec::new();
        encode_frame(Header::default(), &[], &mut long, |out| out.resize(INPUT_KEPT_BYTES_MAX * 2, 0));
        let mut input = Input::default();
        input.extend(&[&long[..long.len() - 1]]);
        assert!(input.next().is_ok_and(|frame| frame.is_none()));
        input.trim();
        assert!(input.buffer.capacity() >= long.len() - 1, "the rest of it will come");
        input.extend(&[&long[long.len() - 1..]]);
        assert!(input.next().is_ok_and(|frame| frame.is_some()));
        input.trim();
        assert_eq!(input.buffer.capacity(), 0);
        input.extend(&[&long[..3]]);
        input.trim();
        assert_eq!(input.buffer.len(), 3);
    }
}
