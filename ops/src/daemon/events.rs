//! The thread that reads events from the journal for those who follow them.

use std::sync::Arc;
use std::task::Waker;
use std::thread::{self, JoinHandle};

use wharf_core::link::{Doorbell, ThreadWaker};
use wharf_core::resource::ResourceRegistry;
use wharf_net::session::events::EventSource;

use super::{DaemonError, threads};
use crate::journal::{EventReader, EventsInbox, Log, Recent, Store};

const NAME: &str = "wharf-events";

/// The running thread.
pub(super) struct Events {
    recent: Arc<Recent>,
    inbox: Arc<EventsInbox>,
    thread: JoinHandle<()>,
}

impl Events {
    /// Starts the thread over the log of a start that continues after append `last`.
    pub(super) fn start(
        log: &Log,
        last: u64,
        kinds: Arc<ResourceRegistry>,
        store: &Store,
    ) -> Result<Self, DaemonError> {
        let waker = Arc::new(ThreadWaker::default());
        let bell = Arc::new(Doorbell::new(Waker::from(Arc::clone(&waker))));
        let start = store.events();
        let recent = Arc::new(Recent::new(last, start.before, kinds, Arc::clone(&bell)));
        let inbox = Arc::new(EventsInbox::new(Arc::clone(&recent), bell));
        let reader = EventReader::new(log.reader(), Arc::clone(&recent), &start);
        let of_reader = Arc::clone(&inbox);
        let thread = threads::start(NAME.to_owned(), move || {
            waker.set_current();
            run(reader, &of_reader);
        })?;
        Ok(Self { recent, inbox, thread })
    }

    /// Returns where the journal publishes its values.
    pub(super) fn recent(&self) -> &Arc<Recent> {
        &self.recent
    }

    /// Returns where the events come from.
    pub(super) fn source(&self) -> Arc<dyn EventSource> {
        Arc::clone(&self.inbox) as Arc<dyn EventSource>
    }

    /// Ends the thread. Nobody may follow events any more.
    pub(super) async fn stop(self) -> Result<(), DaemonError> {
        self.inbox.stop();
        threads::join(NAME.to_owned(), self.thread).await
    }
}

/// Answers until it is told to stop.
fn run(mut reader: EventReader, inbox: &EventsInbox) {
    while !inbox.is_stopped() {
        if !reader.poll(inbox) && inbox.bell().sleep_if(|| reader.is_idle(inbox)) {
            thread::park();
        }
    }
}
