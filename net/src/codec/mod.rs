//! Encoding of messages. [Frames](frame) are our own format, so the body format sees only bodies of a known
//! kind and version. [Bodies](body) are encoded by one module.

pub mod body;
pub mod frame;
mod plain;

pub use body::{BodyError, decode_body, decode_stored, encode_body};
pub(crate) use frame::acknowledge_in_frame;
pub use frame::{
    Extension, FLAG_ERROR, FLAG_EXTENSIONS, FLAG_REPLY, FrameError, FrameRef, HEADER_BYTES, Header,
    decode_frame, encode_frame, split_extensions, try_encode_frame,
};
pub use plain::{PlainGrant, write_grant, write_released};
pub(crate) use plain::{
    PlainPlace, read_grant, read_place, read_release, read_released, write_place, write_release,
};
