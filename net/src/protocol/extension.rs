//! Reading what stands in the extensions of a reply.

use serde::de::DeserializeOwned;

use crate::codec::{BodyError, FLAG_EXTENSIONS, Header, decode_body, split_extensions};

/// That an extension of a reply is not what its tag says.
pub(super) fn malformed(tag: u16, message: impl std::fmt::Display) -> BodyError {
    BodyError { field: format!("extensions[{tag}]"), message: message.to_string() }
}

/// What the extension `tag` holds, where it is among those in `rest`, which is what follows the body. Of several
/// with one tag the first counts; what follows its content is a later version's.
///
/// # Errors
/// When `rest` is no list of extensions, or this one cannot be read: the peer's fault. What else it sent cannot
/// be relied upon then.
pub(super) fn read_extension<T: DeserializeOwned>(rest: &[u8], tag: u16) -> Result<Option<T>, BodyError> {
    if rest.is_empty() {
        return Ok(None);
    }
    let header = Header { flags: FLAG_EXTENSIONS, ..Header::default() };
    let extensions = split_extensions(&header, rest).map_err(|message| malformed(tag, message))?;
    let Some(extension) = extensions.iter().find(|extension| extension.tag == tag) else { return Ok(None) };
    let (read, _) = decode_body(extension.bytes).map_err(|error| malformed(tag, error.message))?;
    Ok(Some(read))
}

/// The element of a list of the body that an extension speaks of by its place.
///
/// # Errors
/// When there is none: the peer's fault.
pub(super) fn element<T>(list: &mut [T], at: usize, tag: u16) -> Result<&mut T, BodyError> {
    let count = list.len();
    list.get_mut(at).ok_or_else(|| malformed(tag, format_args!("it speaks of place {at} of {count}")))
}
