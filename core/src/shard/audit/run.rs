//! An audit of a shard, page by page, as requested by `status --audit`.
//!
//! Each command reads one page of nodes. Other commands run between two pages, so an audit never blocks a shard
//! for longer than one page takes.
//!
//! If the shard did not panic, the answer to the last page proves:
//!
//! - Each node passed [`check_slot`](Shard::check_slot) when its page was read. Its allocations and holds add
//!   up to its books per resource and instance, and the structures kept per node agree with it.
//! - After the last page, the shard's sums equal those over all nodes, despite changes while the pages were
//!   read ([`totals`](crate::shard::books::totals)).
//! - If no command changed the books meanwhile, the hashes are those of the state. Otherwise there are no
//!   hashes.
//!
//! Only [`check_invariants`](Shard::check_invariants) checks the summaries inside the trees, that no waiting
//! request would fit, and that statements and bundles agree. The simulator calls it after every command.

use std::collections::BTreeMap;

use crate::ids::PartitionId;
use crate::index::Slot;
use crate::shard::Shard;
use crate::shard::books::Totals;
use crate::shard::command::{Audit, Outcome};
use crate::state::{PartitionHash, PartitionState};

/// The audits of a shard. At most one is in progress.
#[derive(Default)]
pub(crate) struct Audits {
    /// The number of completed audits.
    completed: u64,
    /// The result of the last audit.
    last: Option<Audit>,
    run: Option<Box<Run>>,
}

impl Audits {
    /// Returns whether an audit is in progress.
    pub(crate) fn is_running(&self) -> bool {
        self.run.is_some()
    }
}

/// An audit in progress.
#[derive(Default)]
struct Run {
    /// The slot where the next page begins.
    next: Slot,
    /// True if a command changed the books since the audit began.
    is_changed: bool,
    /// The hash of the records read so far, per partition.
    partitions: BTreeMap<PartitionId, PartitionHash>,
}

impl Shard {
    /// Reads one more page for the audit `number`. With 0, asks for an audit that begins after this command.
    ///
    /// Audits are numbered from 1. A caller that asks during an audit gets the next one, and shares it with all
    /// others that ask meanwhile.
    pub(crate) fn handle_audit(&mut self, number: u64) -> Outcome {
        let next = self.audit.audits.completed + 1;
        let wanted = if number == 0 { next + u64::from(self.audit.audits.run.is_some()) } else { number };
        assert!(wanted <= next + 1, "audit {wanted} is asked for, and {next} is the next one");
        if wanted >= next {
            let mut run = self.audit.audits.run.take().unwrap_or_default();
            if self.read_page(&mut run) {
                self.audit.audits.last = Some(self.end_run(&run));
                self.audit.audits.completed = next;
            } else {
                self.audit.audits.run = Some(run);
            }
        }
        if wanted > self.audit.audits.completed {
            return Outcome::Auditing(wanted);
        }
        let audit = self.audit.audits.last.clone();
        assert!(audit.is_some(), "audit {wanted} is complete and has no result");
        Outcome::Status(Box::new(self.status(audit)))
    }

    /// Notes that the books changed. An audit in progress then yields no hashes.
    #[inline]
    pub(crate) fn note_change(&mut self, outcome: Option<&Outcome>) {
        if let Some(run) = &mut self.audit.audits.run {
            run.is_changed |= outcome.is_none_or(Outcome::may_have_changed_books);
        }
    }

    /// Reads nodes until the page is full. Returns whether all nodes have been read.
    fn read_page(&mut self, run: &mut Run) -> bool {
        let mut totals = self.books.sums.kept.take_read();
        let before = self.audit.work;
        let slots = self.books.nodes.slots();
        let first = run.next;
        while run.next < slots {
            let work = self.audit.work.since(before);
            if work.nodes_looked_at >= u64::from(self.audit.pages.audit_nodes)
                || work.allocations_looked_at >= u64::from(self.audit.pages.audit_allocations)
            {
                break;
            }
            self.audit.work.nodes_looked_at += 1;
            if self.books.nodes.is_there(run.next) {
                self.read_node(run, &mut totals);
            }
            run.next += 1;
        }
        assert!(run.next <= slots, "an audit is at {} of {slots} slots", run.next);
        assert!(run.next > first || first == slots, "a page of an audit has no slot");
        self.books.sums.kept.put_read(run.next, totals);
        run.next == slots
    }

    fn read_node(&mut self, run: &mut Run, totals: &mut Totals) {
        let slot = run.next;
        let in_use = self.in_use(slot);
        self.audit.work.allocations_looked_at += in_use.allocations;
        let checked = self.check_slot(slot, &in_use);
        checked.unwrap_or_else(|broken| panic!("shard {}: {broken}", self.id.0));
        self.add_to_totals(slot, &in_use, totals);
        if run.is_changed {
            return;
        }
        let partition = self.books.nodes.hot(slot).partition;
        let mut records = PartitionState::empty(partition);
        self.export_node(slot, &mut records);
        self.audit.work.allocations_looked_at += records.inside.len() as u64;
        run.partitions.entry(partition).or_default().add_records(&records);
    }

    /// Compares the sums and combines the hashes.
    fn end_run(&mut self, run: &Run) -> Audit {
        let totals = self.books.sums.kept.end_reading();
        let checked = self.books.sums.kept.all().check(&totals);
        checked.unwrap_or_else(|broken| panic!("shard {}: {broken}", self.id.0));
        let partitions = self.books.partitions.len();
        assert!(run.partitions.len() <= partitions, "an audit read a partition of another shard");
        let hash_of = |&id: &PartitionId| {
            let hash = run.partitions.get(&id).copied().unwrap_or_default();
            (id, hash.finish(id))
        };
        let hashes =
            (!run.is_changed).then(|| self.hashes_of(self.books.partitions.iter().map(hash_of).collect()));
        Audit { hashes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AllocationId, Incarnation, NodeId, Ordinal, OwnerId, ShardId};
    use crate::index::Geometry;
    use crate::node::{Labels, LifeEvent, NodeRegistration, NodeSpec, Taints};
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::{Amount, Demand, GpuRequest};
    use crate::rng::Rng;
    use crate::shard::{Command, HybridSettings, Pages, Reserve, ShardConfig};

    fn node(number: u64) -> Command {
        let spec = NodeSpec {
            name: format!("n{number}").into(),
            identity: None,
            cpu: Amount::whole(8),
            memory: Amount::whole(64),
            gpus: 2,
            custom: None,
            labels: Labels::default(),
            taints: Taints::default(),
        };
        let id = NodeId(number);
        let ordinal = Ordinal(number);
        let partition = PartitionId((number % 2) as u16);
        Command::AddNode(Box::new(NodeRegistration { id, ordinal, partition, spec, agent: None }))
    }

    fn demand(cpu: u32, part: u16) -> Demand {
        Demand { cpu: Amount::whole(cpu), gpu: GpuRequest::Fraction(part), ..Demand::default() }
    }

    fn run(shard: &mut Shard, command: Command) -> Outcome {
        let mut outcomes = Vec::new();
        shard.step([command], shard.now, &mut outcomes);
        outcomes.remove(0)
    }

    /// Returns a shard with allocations on its nodes, and pages of two nodes.
    fn busy(nodes: u64) -> Shard {
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0), PartitionId(1)],
            geometry: Geometry::default(),
            seed: 0,
            hybrid: HybridSettings::default(),
        });
        shard.set_pages(Pages { audit_nodes: 2, ..Pages::default() });
        (1..=nodes).for_each(|number| drop(run(&mut shard, node(number))));
        for _ in 0..nodes {
            let request = PlacementRequest::new(demand(1, 2500), Policy::LeastFit);
            run(&mut shard, Command::Place(request));
        }
        shard
    }

    /// Asks for pages until the audit is complete, and calls `between` after each page.
    fn audit(shard: &mut Shard, mut between: impl FnMut(&mut Shard)) -> Audit {
        let mut number = 0;
        loop {
            match run(shard, Command::Audit { number }) {
                Outcome::Auditing(next) => number = next,
                Outcome::Status(status) => return status.audit.expect("the last page has the audit"),
                other => panic!("no audit: {other:?}"),
            }
            between(shard);
        }
    }

    #[test]
    fn an_audit_by_pages_has_the_hashes_of_the_state() {
        let mut shard = busy(9);
        let hashes = audit(&mut shard, |_| ()).hashes.expect("nothing changed");
        assert_eq!(hashes, shard.hashes());
        let refused = |shard: &mut Shard| {
            let request = PlacementRequest::new(demand(99, 0), Policy::FirstFit);
            assert!(matches!(run(shard, Command::Place(request)), Outcome::Place(Err(_))));
        };
        assert_eq!(audit(&mut shard, refused).hashes, Some(hashes), "a refusal changes no books");
    }

    /// The sums agree regardless of changes between pages, on nodes already read and on others.
    #[test]
    fn what_changes_between_two_pages_is_followed() {
        let mut rng = Rng::new(7);
        let mut shard = busy(9);
        let mut live = Vec::<AllocationId>::new();
        let mut last = 9;
        let mut change = |shard: &mut Shard| {
            let command = match rng.below(10) {
                0..4 => {
                    let request = PlacementRequest::new(demand(1, 2500), Policy::Random);
                    Command::Place(request)
                }
                4 | 5 if !live.is_empty() => {
                    Command::Release(live.swap_remove(rng.below(live.len() as u64) as usize))
                }
                6 => {
                    last += 1;
                    node(last)
                }
                7 => Command::RemoveNode { node: NodeId(1 + rng.below(last)), force: true },
                8 => {
                    let event = [LifeEvent::Drain, LifeEvent::Undrain][rng.below(2) as usize];
                    Command::Life(NodeId(1 + rng.below(last)), event)
                }
                _ => {
                    let node = NodeId(1 + rng.below(last));
                    let owner = OwnerId::new(1).expect("in range");
                    Command::Reserve(Box::new(Reserve { node, owner, demand: demand(3, 5000), until: None }))
                }
            };
            if let Outcome::Place(Ok(placement)) = run(shard, command) {
                live.push(placement.allocation);
            }
            shard.check_invariants().expect("the books are right");
        };
        let without = (0..60).filter(|_| audit(&mut shard, &mut change).hashes.is_none()).count();
        assert!(without > 50, "{without} times the books changed");
    }

    #[test]
    fn who_asks_meanwhile_shares_the_next_audit() {
        let mut shard = busy(5);
        assert!(matches!(run(&mut shard, Command::Audit { number: 0 }), Outcome::Auditing(1)));
        for _ in 0..2 {
            // Each reads a page of the first audit and waits for the second.
            assert!(matches!(run(&mut shard, Command::Audit { number: 0 }), Outcome::Auditing(2)));
        }
        assert!(matches!(run(&mut shard, Command::Audit { number: 1 }), Outcome::Status(_)));
        let more = (0..2).map(|_| run(&mut shard, Command::Audit { number: 2 }));
        let more: Vec<Outcome> = more.collect();
        assert!(more.iter().all(|outcome| matches!(outcome, Outcome::Auditing(2))), "{more:?}");
        let last = [(); 2].map(|()| run(&mut shard, Command::Audit { number: 2 }));
        assert!(last.iter().all(|outcome| matches!(outcome, Outcome::Status(_))), "{last:?}");
    }

    #[test]
    #[should_panic(expected = "shard 0: the sums of Cpu say")]
    fn a_sum_that_is_wrong_is_found_by_the_last_page() {
        let mut shard = busy(5);
        shard.books.sums.kept.change(2, |totals| {
            totals.sum_mut(crate::resource::ResourceKind::Cpu).allocated += 1;
        });
        audit(&mut shard, |_| ());
    }

    #[test]
    #[should_panic(expected = "available + ")]
    fn a_book_that_is_wrong_is_found_by_its_page() {
        let mut shard = busy(5);
        shard.books.nodes.lose_cpu(4, Amount::from_milli(1));
        audit(&mut shard, |_| ());
    }
}
