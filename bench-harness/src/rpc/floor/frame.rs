//! Frames of the echo: as little as is needed to match a reply to its request, padded to the size of the service's own.

/// The bytes of a frame without padding: its length, the length of the reply to it, and its id.
pub(super) const HEAD_BYTES: usize = 16;

/// The sizes of a request's frame and of its reply's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rpc) struct FrameSizes {
    /// The bytes of a request's frame.
    pub(in crate::rpc) request: u32,
    /// The bytes of a reply's frame.
    pub(in crate::rpc) reply: u32,
}

/// Appends a frame of `length` bytes, the reply to which has `reply` bytes.
pub(super) fn append(out: &mut Vec<u8>, length: u32, reply: u32, id: u64) {
    let length = length.max(HEAD_BYTES as u32);
    let end = out.len() + length as usize;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&reply.to_le_bytes());
    out.extend_from_slice(&id.to_le_bytes());
    out.resize(end, 0);
}

/// Finds the frames in chunks of a stream.
#[derive(Default)]
pub(super) struct Frames {
    /// The beginning of a frame whose rest has not come yet.
    cut: Vec<u8>,
}

impl Frames {
    /// Calls `each` with the id of every complete frame, and with the length of its reply.
    pub(super) fn take(&mut self, mut chunk: &[u8], mut each: impl FnMut(u64, u32)) {
        while !self.cut.is_empty() {
            // The length first, if even that is cut.
            let length = self.cut.first_chunk().map(|length| u32::from_le_bytes(*length) as usize);
            if Some(self.cut.len()) == length {
                let Head { reply, id, .. } = head(&self.cut);
                each(id, reply);
                self.cut.clear();
                break;
            }
            let missing = length.unwrap_or(size_of::<u32>()) - self.cut.len();
            let (part, rest) = chunk.split_at(missing.min(chunk.len()));
            if part.is_empty() {
                return;
            }
            self.cut.extend_from_slice(part);
            chunk = rest;
        }
        while chunk.len() >= HEAD_BYTES {
            let Head { length, reply, id } = head(chunk);
            if chunk.len() < length as usize {
                break;
            }
            each(id, reply);
            chunk = &chunk[length as usize..];
        }
        self.cut.extend_from_slice(chunk);
    }
}

struct Head {
    length: u32,
    reply: u32,
    id: u64,
}

fn head(frame: &[u8]) -> Head {
    let number = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().expect("four bytes"));
    let id = u64::from_le_bytes(frame[8..HEAD_BYTES].try_into().expect("eight bytes"));
    Head { length: number(0), reply: number(4), id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let mut stream = Vec::new();
        let lengths = [16, 64, 17, 200, 3];
        for (id, length) in (0..).zip(lengths) {
            append(&mut stream, length, length + 1, id);
        }
        for size in [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000] {
            let mut frames = Frames::default();
            let mut found = Vec::new();
            for chunk in stream.chunks(size) {
                frames.take(chunk, |id, reply| found.push((id, reply)));
            }
            let expected: Vec<_> = (0..).zip(lengths.map(|length| length + 1)).collect();
            assert_eq!(found, expected, "chunks of {size}");
            assert!(frames.cut.is_empty(), "chunks of {size}");
        }
    }
}
