//! Exports of the store: the service that has the store produces them, on a thread of its own.

use wharf_core::time::Time;

use crate::protocol::{ExportReply, ExportRequest, Fault};

/// Takes a page of an export, or the fault for which there is none.
pub type ExportAnswer = Box<dyn FnOnce(Result<ExportReply, Fault>) + Send>;

/// Serves exports of the store.
pub trait Exports: Send + Sync {
    /// Asks for a page, and does not wait. A page that has not begun by `due` is not made: the answer is [`Fault::late`].
    /// `answer` is called on another thread, or is dropped if the service ends before.
    fn ask(&self, request: ExportRequest, due: Time, answer: ExportAnswer);
}
