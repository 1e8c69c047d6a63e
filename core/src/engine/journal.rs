//! Connects the parts of an engine with its journal.

use std::sync::Arc;

use crate::executor::ShardRunner;
use crate::ids::Incarnation;
use crate::journal::{Changes, JournalFeed, JournalPort, Unit};
use crate::link::JournalQueue;
use crate::registrar::Registrar;
use crate::router::Port;
use crate::time::Time;

/// Creates the queue of the journal, with the units that say that the service started.
pub(super) fn open(
    registrar: &Registrar,
    incarnation: Incarnation,
    now: Time,
    (runners, ports): (&mut [ShardRunner], &mut [Port]),
) -> (JournalFeed, Arc<JournalQueue<Unit>>) {
    let (bell, waker) = ShardRunner::doorbell();
    let queue = Arc::<JournalQueue<Unit>>::default();
    queue.set_bells(ports.iter().map(|port| Arc::clone(port.bell())).collect(), Arc::clone(&bell));
    let shards = u16::try_from(runners.len()).expect("SHARDS_MAX fits u16");
    queue.put(Unit::new(now, Changes::Started { incarnation, shards }));
    queue.put(Unit::new(now, registrar.kinds()));
    runners.iter_mut().for_each(|runner| runner.set_journal(Arc::clone(&queue)));
    for (number, port) in (0..).zip(ports) {
        port.set_journal(JournalPort::new(&queue, number));
    }
    (JournalFeed::new(Arc::clone(&queue), bell, waker), queue)
}
