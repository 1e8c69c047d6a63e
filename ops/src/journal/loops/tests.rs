//! Tests of the loops: what is too late when the thread of the checkpoints takes it.

use std::task::Waker;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_net::protocol::ExportReply;

use super::*;
use crate::journal::Durability;

#[test]
fn a_page_of_an_export_is_not_made_after_its_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, state) = Store::open(directory.path(), 4, Durability::Os).unwrap();
    let config = EngineConfig { journal: true, ..EngineConfig::default() };
    let mut engine = Engine::open(state.clone(), &config, vec![Waker::noop().clone()]).unwrap();
    let feed = engine.journal.take().unwrap();
    store.record_undone(&feed, engine.now);
    let globals = state.globals();
    let (log, last, heads) = store.begin(engine.incarnation, &globals).unwrap().unwrap();
    let store = Arc::new(store);
    let mut loops = JournalLoops::begin(JournalStart {
        feed,
        port: engine.ports.pop().unwrap(),
        events_bell: Arc::new(Doorbell::new(Waker::noop().clone())),
        store: &store,
        log,
        last,
        heads,
        globals,
        bounds: JournalBounds::new(1 << 20, 1 << 20),
        now: engine.now,
    })
    .unwrap();
    let due = engine.now.plus_nanos(10);
    let ask_at = |loops: &mut JournalLoops, now: Time| -> Result<ExportReply, Fault> {
        let answers: Arc<Mutex<Vec<_>>> = Arc::default();
        let of_thread = Arc::clone(&answers);
        let request = ExportRequest { export: 1, page: 0 };
        loops.inbox.ask(request, due, Box::new(move |page| lock(&of_thread).push(page)));
        loops.checkpoints.turn(now);
        lock(&answers).pop().expect("it is answered")
    };
    assert!(ask_at(&mut loops, due).is_err_and(|fault| fault.is_late()));
    assert!(!loops.checkpoints.exporter.is_active(), "nothing has begun");
    let page = ask_at(&mut loops, Time(due.0 - 1));
    assert!(page.is_ok(), "{page:?}");
}
