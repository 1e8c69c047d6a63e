//! When releases with a deadline arrive, and when the service reads them.

use std::sync::{Arc, Mutex, PoisonError};

use wharf_core::ids::SessionId;
use wharf_core::time::Time;
use wharf_net::codec::{FLAG_ERROR, FrameRef, decode_body, split_extensions};
use wharf_net::protocol::{Deadline, EXTENSION_DEADLINE, Fault, Reason, ReleaseRequest};
use wharf_net::session::connections::IoObserver;

use super::{Event, Server};

/// The requests with a deadline that the service has read, with the time.
#[derive(Clone, Default)]
pub(super) struct Reads(Arc<Mutex<Vec<(SessionId, u64, Time)>>>);

impl IoObserver for Reads {
    fn handle_timed(&mut self, session: SessionId, sequence: u64, read: Time) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((session, sequence, read));
    }
}

impl Server {
    /// Notes the deadline of a release whose frame is about to arrive.
    pub(in crate::sim) fn expect_release(&mut self, number: u64, frame: &FrameRef<'_>) {
        let Some(session) = self.links.get(&number).and_then(|link| link.session) else { return };
        let (request, taken) = decode_body::<ReleaseRequest>(frame.payload).expect("our own body");
        let extensions = split_extensions(&frame.header, &frame.payload[taken..]).expect("our own frame");
        let deadline = extensions.iter().find(|extension| extension.tag == EXTENSION_DEADLINE);
        let within_ns = deadline
            .map(|deadline| decode_body::<Deadline>(deadline.bytes).expect("our own extension").0.within);
        self.releases.arrives((session, frame.header.sequence), request.allocation.into(), within_ns);
    }

    /// Notes what the service has read since the last call.
    pub(in crate::sim) fn note_reads(&mut self) {
        let reads = std::mem::take(&mut *self.reads.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (session, sequence, read) in reads {
            self.releases.is_read((session, sequence), read);
        }
    }

    /// Checks a frame that the service sends at `now`: what it refuses as late was late.
    pub(super) fn check_late(&mut self, number: u64, frame: &FrameRef<'_>, now: Time) {
        let is_late = frame.header.flags & FLAG_ERROR != 0
            && decode_body::<Fault>(frame.payload)
                .is_ok_and(|(fault, _)| fault.reason == Reason::DeadlineExceeded.into());
        if let Some(session) = self.links[&number].session
            && is_late
        {
            self.note_reads();
            let found = self.releases.check_late((session, frame.header.sequence), now).err();
            self.events.extend(found.map(|found| Event::Broken("only_what_is_late_is_refused", found)));
        }
    }
}
