//! Exports of a running service, page by page, on the thread of the checkpoints.
//!
//! One export is under way at a time. While it is, no value that it needs is dropped. It ends when its last page is made,
//! or when nobody has asked for a page for [`PATIENCE_NS`].

use tracing::{info, warn};
use wharf_core::time::Time;
use wharf_net::protocol::{EXPORT_PAGE_BYTES_MAX, ExportReply, ExportRequest, Fault, Reason};

use super::export::Export;
use super::log::LogReader;
use super::store::Store;
use crate::file_error::FileError;

/// The longest time between two requests for pages of an export, in ns.
const PATIENCE_NS: u64 = 30_000_000_000;

/// The last export, and its last page.
struct Current {
    number: u64,
    page: u64,
    reply: ExportReply,
    /// `None` once the last page is made.
    export: Option<Export>,
    /// What was made after the last page.
    ahead: Vec<u8>,
    asked: Time,
}

/// Makes the pages.
pub(super) struct Exporter {
    values: LogReader,
    current: Option<Current>,
}

impl Exporter {
    pub(super) fn new(values: LogReader) -> Self {
        Self { values, current: None }
    }

    /// Returns whether values are needed that a checkpoint covers.
    pub(super) fn is_active(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.export.is_some())
    }

    /// Returns the time at which the export ends unless a page is asked for.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let current = self.current.as_ref().filter(|current| current.export.is_some())?;
        Some(current.asked.plus_nanos(PATIENCE_NS))
    }

    /// Ends an export for which nobody asks any more.
    pub(super) fn expire(&mut self, now: Time) {
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            info!("an export was given up: nobody asks for its next page");
            self.current = None;
        }
    }

    /// Makes a page, or repeats the last one.
    pub(super) fn handle(
        &mut self,
        request: ExportRequest,
        store: &Store,
        now: Time,
    ) -> Result<ExportReply, Fault> {
        let ExportRequest { export: number, page } = request;
        let of_this = self.current.as_ref().filter(|current| current.number == number);
        match of_this {
            Some(current) if page == current.page => return Ok(current.reply.clone()),
            Some(current) if page == current.page + 1 && current.reply.more => {}
            None if page == 0 && !self.is_active() => {
                let export = Export::begin(store, self.values.clone()).map_err(|error| failed(&error))?;
                let reply = ExportReply { more: true, ..ExportReply::default() };
                let export = Some(export);
                self.current = Some(Current { number, page, reply, export, ahead: Vec::new(), asked: now });
            }
            None if page == 0 => {
                let message = "another export is under way: ask again when it has ended";
                return Err(Fault::new(Reason::Unavailable, message));
            }
            _ => {
                let message =
                    "this is not the next page of the export, or the export has ended: begin another one";
                return Err(Fault::of_field(Reason::InvalidField, "page", message));
            }
        }
        let current = self.current.as_mut().expect("it was there, or has begun");
        current.page = page;
        current.asked = now;
        match current.make() {
            Ok(reply) => {
                current.reply = reply.clone();
                Ok(reply)
            }
            Err(error) => {
                self.current = None;
                Err(failed(&error))
            }
        }
    }
}

impl Current {
    fn make(&mut self) -> Result<ExportReply, FileError> {
        while self.ahead.len() <= EXPORT_PAGE_BYTES_MAX
            && let Some(export) = &mut self.export
        {
            if !export.piece(&mut self.ahead)? {
                self.export = None;
            }
        }
        let rest = self.ahead.split_off(self.ahead.len().min(EXPORT_PAGE_BYTES_MAX));
        let bytes = std::mem::replace(&mut self.ahead, rest);
        Ok(ExportReply { more: !self.ahead.is_empty() || self.export.is_some(), bytes })
    }
}

fn failed(error: &FileError) -> Fault {
    warn!(%error, "an export failed");
    Fault::new(Reason::Unavailable, format!("the store cannot be exported: {error}"))
}
