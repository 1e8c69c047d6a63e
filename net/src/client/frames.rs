//! Frames of a stream that arrives in chunks.

use bytes::{Buf, Bytes};

use crate::codec::{FrameError, HEADER_BYTES, Header, decode_frame};
use crate::protocol::FRAME_BYTES_MAX;

/// Bytes of the field that says how long a frame is.
const LENGTH_BYTES: usize = 4;

/// Cuts chunks into frames. Only a frame that begins in one chunk and ends in another is copied. The others share the
/// memory of their chunk.
#[derive(Default)]
pub(super) struct Frames {
    /// The begin of a frame whose end has not arrived.
    begun: Vec<u8>,
}

impl Frames {
    /// Calls `each` with the header and the payload of each frame that ends in `chunk`, in order. The first error ends this.
    ///
    /// # Errors
    /// If the bytes are not a frame, and with the errors of `each`.
    pub(super) fn take<E: From<FrameError>>(
        &mut self,
        mut chunk: Bytes,
        mut each: impl FnMut(Header, Bytes) -> Result<(), E>,
    ) -> Result<(), E> {
        while !self.begun.is_empty() && !chunk.is_empty() {
            let more = chunk.split_to(self.missing().min(chunk.len()));
            self.begun.extend_from_slice(&more);
            if let Some((header, length)) = whole(&self.begun)? {
                debug_assert_eq!(length, self.begun.len(), "no byte of the next frame is taken");
                let mut frame = Bytes::from(std::mem::take(&mut self.begun));
                frame.advance(HEADER_BYTES);
                each(header, frame)?;
            }
        }
        while let Some((header, length)) = whole(&chunk)? {
            let mut frame = chunk.split_to(length);
            frame.advance(HEADER_BYTES);
            each(header, frame)?;
        }
        self.begun.extend_from_slice(&chunk);
        Ok(())
    }

    /// Returns how many bytes the next step needs: the rest of the length, or of the frame.
    fn missing(&self) -> usize {
        let length = self.begun.first_chunk::<LENGTH_BYTES>();
        let total = length.map_or(LENGTH_BYTES, |&length| LENGTH_BYTES + u32::from_le_bytes(length) as usize);
        total - self.begun.len()
    }
}

/// Returns the header and the length of the frame at the front, if all of it is there.
fn whole(bytes: &[u8]) -> Result<Option<(Header, usize)>, FrameError> {
    Ok(decode_frame(bytes, FRAME_BYTES_MAX)?.map(|frame| (frame.header, frame.bytes)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::encode_frame;

    fn frames_of(chunks: &[Bytes]) -> Result<Vec<(u64, Bytes)>, FrameError> {
        let mut frames = Frames::default();
        let mut taken = Vec::new();
        for chunk in chunks {
            frames.take(chunk.clone(), |header, payload| {
                taken.push((header.sequence, payload));
                Ok::<(), FrameError>(())
            })?;
        }
        Ok(taken)
    }

    proptest! {
        #[test]
        fn frames_do_not_depend_on_where_the_stream_is_cut(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..12),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            let mut stream = Vec::new();
            for (number, payload) in payloads.iter().enumerate() {
                let header = Header { sequence: number as u64, ..Header::default() };
                encode_frame(header, &[], &mut stream, |out| out.extend_from_slice(payload));
            }
            let stream = Bytes::from(stream);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let chunks: Vec<Bytes> = cuts.windows(2).map(|cut| stream.slice(cut[0]..cut[1])).collect();
            let expected: Vec<(u64, Bytes)> = (0..).zip(payloads.into_iter().map(Bytes::from)).collect();
            prop_assert_eq!(frames_of(&chunks), Ok(expected));
        }
    }

    #[test]
    fn a_frame_in_one_chunk_is_not_copied() {
        let mut stream = Vec::new();
        encode_frame(Header::default(), &[], &mut stream, |out| out.extend_from_slice(b"body"));
        let stream = Bytes::from(stream);
        let taken = frames_of(std::slice::from_ref(&stream)).unwrap();
        assert_eq!(taken[0].1.as_ptr(), stream[HEADER_BYTES..].as_ptr());
    }

    #[test]
    fn a_length_that_no_frame_has_is_refused_in_any_chunk() {
        let long = Bytes::copy_from_slice(&(FRAME_BYTES_MAX + 1).to_le_bytes());
        assert!(matches!(frames_of(std::slice::from_ref(&long)), Err(FrameError::TooLong { .. })));
        let cut = [long.slice(..2), long.slice(2..)];
        assert!(matches!(frames_of(&cut), Err(FrameError::TooLong { .. })));
    }
}
