//! The thread that reads events from the journal for those who follow them.

use std::sync::Arc;
use std::task::Waker;
use std::thread::{self, JoinHandle};

use wharf_core::link::{Clock, Doorbell, ThreadWaker};
use wharf_net::session::events::EventSource;

use super::{DaemonError, ServiceClock, threads};
use crate::journal::{EventReader, EventsInbox};

const NAME: &str = "wharf-events";

/// The bell of the thread, before it runs.
pub(super) struct EventsBell {
    waker: Arc<ThreadWaker>,
    bell: Arc<Doorbell>,
}

impl EventsBell {
    pub(super) fn new() -> Self {
        let waker = Arc::new(ThreadWaker::default());
        let bell = Arc::new(Doorbell::new(Waker::from(Arc::clone(&waker))));
        Self { waker, bell }
    }

    pub(super) fn bell(&self) -> Arc<Doorbell> {
        Arc::clone(&self.bell)
    }
}

/// The running thread.
pub(super) struct Events {
    inbox: Arc<EventsInbox>,
    thread: JoinHandle<()>,
}

impl Events {
    /// Starts the thread.
    pub(super) fn start(
        reader: EventReader,
        inbox: Arc<EventsInbox>,
        bell: EventsBell,
        clock: ServiceClock,
    ) -> Result<Self, DaemonError> {
        let of_reader = Arc::clone(&inbox);
        let thread = threads::start(NAME.to_owned(), move || {
            bell.waker.set_current();
            run(reader, &of_reader, &clock);
        })?;
        Ok(Self { inbox, thread })
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
fn run(mut reader: EventReader, inbox: &EventsInbox, clock: &ServiceClock) {
    while !inbox.is_stopped() {
        if !reader.poll(inbox, clock.now()) && inbox.bell().sleep_if(|| reader.is_idle(inbox)) {
            thread::park();
        }
    }
}
