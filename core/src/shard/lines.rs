//! The cache lines of a shard's own data that a placement, a refusal and a release touch, for `wharf-bench engine`, which
//! measures what they cost without any work on them. See `docs/decisions/layout.md`.

use std::mem::offset_of;

use super::Shard;
use super::books::{ColdNode, PAGE};
use super::choose::{Eligibility, Page};
use crate::ids::{AllocationId, NodeId};
use crate::index::{IndexLines, LineRead, Lines, Slot, Structure};
use crate::memory::LINE;
use crate::request::{PlacementRequest, Policy};

/// The line of an allocation's record, and those of its neighbours in the list of its node. A record is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLines {
    /// The line that says where the page of the record is.
    pub page: usize,
    /// The record.
    pub record: usize,
    /// The neighbours that exist.
    pub neighbours: [Option<usize>; 2],
}

/// The lines of a node, each by its number within its structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLines {
    /// The line of its room.
    pub room: usize,
    /// Its hot line.
    pub hot: usize,
    /// Its lines in the index.
    pub index: IndexLines,
}

/// A line that a choice reads, by its number within its structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadLine {
    /// Of the index of what is free, or of the set of a selector.
    Free(Structure, usize),
    /// Of the index of the nodes at their capacity.
    Capacities(Structure, usize),
    /// Of the rooms of nodes.
    Room(usize),
    /// Of the registrations of nodes.
    Registration(usize),
}

/// The lines that the choice of a node reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceLines {
    /// The chosen node. `None` if the request is refused.
    pub node: Option<NodeId>,
    /// The lines, in order: those of the search, then those of the refusal.
    pub reads: Vec<ReadLine>,
}

impl ReadLine {
    fn room(slot: Slot) -> Self {
        Self::Room(slot as usize * size_of::<super::books::Room>() / LINE)
    }

    fn registration(slot: Slot) -> Self {
        let amounts = offset_of!(ColdNode, registration.spec.cpu);
        Self::Registration((slot as usize * size_of::<Option<ColdNode>>() + amounts) / LINE)
    }
}

impl Shard {
    /// Returns the lines that the choice of a node for `request` reads now, by the shard's own search. Nothing is placed, and
    /// the next choice is the same as without this. `None` for requests with an owner, named candidates or ranks, and for
    /// policies that do not search the index.
    pub fn choice_lines(&mut self, request: &PlacementRequest) -> Option<ChoiceLines> {
        let is_by_index = !request.policy.is_fragmentation_aware() && request.policy != Policy::Hybrid;
        if !is_by_index || request.owner.is_some() || request.candidates.is_some() {
            return None;
        }
        let Eligibility::Plain(set) = self.choose.eligibility(&self.books, request) else { return None };
        let state = self.choose.policy_state().clone();
        let mut search = Lines::default();
        let found = self.choose.find_plain(&self.books, request, set, &mut search);
        self.choose.set_policy_state(state);
        let is_usable = found.is_none_or(|slot| self.books.nodes.takes_work(slot));
        assert!(is_usable, "the index has a node that takes no new work");
        let mut reads = Vec::new();
        for read in search.reads {
            match read {
                LineRead::Index(of, line) => reads.push(ReadLine::Free(of, line)),
                LineRead::Node(slot) => {
                    reads.push(ReadLine::room(slot));
                    // Whether it is a member is only asked if it has enough.
                    if let Some(set) = set
                        && self.books.nodes.fits(slot, &request.demand)
                    {
                        reads.push(ReadLine::Free(set.structure(), slot as usize / 8 / LINE));
                    }
                }
            }
        }
        if found.is_none() {
            let page = Page { from: 0, most: self.audit.pages.explain_nodes };
            let [mut of_capacities, mut of_free] = [Lines::default(), Lines::default()];
            let meters = [&mut of_capacities, &mut of_free];
            let scope = Eligibility::Plain(set);
            let (refusal, _) = self.choose.explain(&self.books, request, scope, page, meters);
            assert!(refusal.nodes as usize == self.books.nodes.len(), "a refusal is about other nodes");
            reads.extend(of_capacities.reads.into_iter().map(|read| match read {
                LineRead::Index(of, line) => ReadLine::Capacities(of, line),
                LineRead::Node(slot) => ReadLine::registration(slot),
            }));
            reads.extend(of_free.reads.into_iter().map(|read| match read {
                LineRead::Index(of, line) => ReadLine::Free(of, line),
                LineRead::Node(slot) => ReadLine::room(slot),
            }));
        }
        Some(ChoiceLines { node: found.map(|slot| self.books.nodes.hot(slot).id), reads })
    }

    /// Returns the lines of a live allocation's record. `None` if there is no such allocation, or if an earlier start
    /// granted its id.
    #[must_use]
    pub fn record_lines(&self, id: AllocationId) -> Option<RecordLines> {
        let (_, previous, next) = self.books.ledger.neighbours(id)?;
        let is_there = |&at: &u32| at != crate::view::NO_ALLOCATION;
        let neighbours = [previous, next].map(|at| Some(at).filter(is_there).map(|at| at as usize));
        let record = id.sequence as u32 as usize;
        Some(RecordLines { page: record / PAGE * size_of::<usize>() / LINE, record, neighbours })
    }

    /// Returns the lines of a node. `None` if it is unknown or takes no work, or if an index of this geometry has wide
    /// entries.
    #[must_use]
    pub fn node_lines(&self, node: NodeId) -> Option<NodeLines> {
        let slot = self.books.nodes.slot(node)?;
        let room = slot as usize * size_of::<super::books::Room>() / LINE;
        Some(NodeLines { room, hot: slot as usize, index: self.choose.lines(slot)? })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::ids::{Incarnation, Ordinal, PartitionId, ShardId};
    use crate::index::Geometry;
    use crate::node::{Labels, NodeRegistration, NodeSpec, Operator, Selector, Taints, Term};
    use crate::resource::{Amount, Demand, GpuRequest};
    use crate::rng::Rng;
    use crate::shard::{Command, HybridSettings, Outcome, ShardConfig};
    use crate::time::Time;

    fn milli(cpu: u64) -> Amount {
        Amount::try_from_units(cpu as i64 * 10).expect("it is small")
    }

    fn demand(cpu: u64, memory: u32, gpu: GpuRequest) -> Demand {
        Demand { cpu: milli(cpu), memory: Amount::whole(memory), gpu, custom: None }
    }

    /// A shard of nodes with this much cpu, in thousandths, and these GPUs. Every third is in a zone of its own.
    fn shard(nodes: impl Iterator<Item = (u64, u8)>) -> Shard {
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry: Geometry::default(),
            seed: 7,
            hybrid: HybridSettings::default(),
        });
        for (number, (cpu, gpus)) in (0u64..).zip(nodes) {
            let zone = if number % 3 == 0 { "third" } else { "other" };
            let spec = NodeSpec {
                name: format!("n{number}").into(),
                identity: None,
                cpu: milli(cpu),
                memory: Amount::whole(1024),
                gpus,
                custom: None,
                labels: Labels::new(vec![("zone".into(), zone.into())]).expect("one key"),
                taints: Taints::default(),
            };
            let id = NodeId(number + 1);
            let node = NodeRegistration {
                id,
                ordinal: Ordinal(number + 1),
                partition: PartitionId(0),
                spec,
                agent: None,
            };
            shard.step([Command::AddNode(Box::new(node))], Time(0), &mut Vec::new());
        }
        shard
    }

    fn in_zone(zone: &str) -> Arc<Selector> {
        let term = Term { key: "zone".into(), operator: Operator::In, values: vec![zone.into()] };
        Arc::new(Selector::new(vec![term]))
    }

    fn rooms(reads: &[ReadLine]) -> Vec<usize> {
        let room = |read: &ReadLine| if let ReadLine::Room(line) = *read { Some(line) } else { None };
        reads.iter().filter_map(room).collect()
    }

    /// Nodes with less than one core lie in one step of cpu, and all have the same memory. No node has a GPU.
    #[test]
    fn a_refusal_reads_every_entry_that_it_compares() {
        let mut shard = shard((0..200).map(|number| (500 + number % 40 * 10, 0)));
        for (cpu, memory) in [(700, 0), (0, 1024)] {
            let demand = demand(cpu, memory, GpuRequest::Whole(1));
            let asked = PlacementRequest::new(demand, Policy::BestFit);
            let choice = shard.choice_lines(&asked).expect("it is searched in the index");
            assert_eq!(choice.node, None);
            let reads: BTreeSet<ReadLine> = choice.reads.iter().copied().collect();
            for number in 1..=200 {
                let lines = shard.node_lines(NodeId(number)).expect("entries are narrow").index;
                assert!(reads.contains(&ReadLine::Free(Structure::Cells, lines.cell)), "{lines:?}");
                let part = lines.part.expect("200 nodes have one cell, which has parts");
                assert!(reads.contains(&ReadLine::Free(Structure::Directories, part)), "{lines:?}");
                let (first, count) = lines.chunk;
                let is_read = |line| reads.contains(&ReadLine::Free(Structure::Chunks, line));
                assert!((first..first + count).all(is_read), "{lines:?}");
            }
            let looked_at: BTreeSet<usize> = rooms(&choice.reads).into_iter().collect();
            if cpu > 0 {
                // Equal parts of a core are equal amounts. One node is looked at that has the most of those with less, and
                // those that seemed to have it before.
                let most = (0..200).filter(|slot| slot % 40 == 19).map(|slot| slot / 2);
                assert!(most.into_iter().any(|line| looked_at.contains(&line)), "{looked_at:?}");
                assert!(looked_at.len() <= 20, "{looked_at:?}");
            } else {
                // A step of memory has more amounts than parts, so all nodes with the same part are looked at.
                assert!(looked_at.into_iter().eq(0..100));
            }
            // No empty node would do either, which the layout of the index of capacities tells.
            assert!(!reads.iter().any(|read| matches!(read, ReadLine::Registration(_))));
        }
    }

    #[test]
    fn a_refusal_with_a_selector_reads_its_members() {
        for (nodes, is_walked) in [(300u32, true), (3000, false)] {
            let mut shard = shard((0..nodes).map(|_| (1000, 1)));
            let mut asked = PlacementRequest::new(demand(500, 1, GpuRequest::Whole(1)), Policy::LeastFit);
            // All GPUs of the zone are taken.
            asked.selector = Some(in_zone("third"));
            let members: Vec<usize> = (0..nodes as usize).filter(|slot| slot % 3 == 0).collect();
            for _ in &members {
                let mut outcomes = Vec::new();
                shard.step([Command::Place(asked.clone())], Time(0), &mut outcomes);
                assert!(matches!(outcomes[..], [Outcome::Place(Ok(_))]), "{outcomes:?}");
            }
            let choice = shard.choice_lines(&asked).expect("a set is searched in the index");
            assert_eq!(choice.node, None);
            let expected: Vec<usize> = members.iter().map(|slot| slot / 2).collect();
            let looked_at = rooms(&choice.reads);
            let searched = looked_at.len() - expected.len();
            assert_eq!(looked_at[searched..], expected, "the count looks at each member once");
            assert_eq!(searched, if is_walked { expected.len() } else { 0 }, "few members are walked");
            let of_sets = |read: &&ReadLine| matches!(read, ReadLine::Free(Structure::Members(0), _));
            let lines = choice.reads.iter().filter(of_sets).count();
            assert_eq!(lines, (nodes as usize).div_ceil(64 * 8), "one bit per node");
            let has = |of: fn(&ReadLine) -> bool| choice.reads.iter().any(of);
            // Some member would do if it were empty, so one registration is read.
            assert!(has(|read| matches!(read, ReadLine::Registration(_))), "{nodes}");
            let is_place = |read: &ReadLine| matches!(read, ReadLine::Free(Structure::Places, _));
            assert_eq!(has(is_place), is_walked, "{nodes}");
        }
    }

    #[test]
    fn telling_the_lines_changes_no_choice() {
        let policies = [Policy::LeastFit, Policy::BestFit, Policy::FirstFit, Policy::NextFit, Policy::Random];
        for policy in policies {
            let nodes = || (0..200u64).map(|number| (1000 + number % 7 * 500, (number % 5) as u8));
            let [mut watched, mut alone] = [shard(nodes()), shard(nodes())];
            let mut rng = Rng::new(3);
            let mut live = Vec::new();
            let [mut placed, mut refused] = [0, 0];
            for round in 0..3_000u32 {
                let command = if live.len() > 900 && rng.below(2) == 0 {
                    Command::Release(live.swap_remove(rng.below(live.len() as u64) as usize))
                } else {
                    let gpu = match rng.below(4) {
                        0 => GpuRequest::Whole(1 + rng.below(3) as u8),
                        1 => GpuRequest::Fraction(1 + rng.below(9_000) as u16),
                        _ => GpuRequest::None,
                    };
                    let mut request =
                        PlacementRequest::new(demand(rng.below(900), rng.below(400) as u32, gpu), policy);
                    request.selector = [None, None, Some(in_zone("third")), Some(in_zone("other"))]
                        [rng.below(4) as usize]
                        .clone();
                    let before = watched.visits();
                    let choice = watched.choice_lines(&request).expect("it is searched in the index");
                    assert_eq!(watched.visits(), before, "what is told is not counted");
                    assert!(!choice.reads.is_empty(), "{request:?}");
                    let mut outcomes = Vec::new();
                    watched.step([Command::Place(request.clone())], Time(0), &mut outcomes);
                    match &outcomes[..] {
                        [Outcome::Place(Ok(placement))] => {
                            placed += 1;
                            live.push(placement.allocation);
                            assert_eq!(choice.node, Some(placement.node), "{policy}, {round}");
                        }
                        [Outcome::Place(Err(_))] => {
                            refused += 1;
                            assert_eq!(choice.node, None, "{policy}, {round}");
                        }
                        other => panic!("{other:?}"),
                    }
                    let mut expected = Vec::new();
                    alone.step([Command::Place(request)], Time(0), &mut expected);
                    assert_eq!(format!("{outcomes:?}"), format!("{expected:?}"), "{policy}, {round}");
                    continue;
                };
                let mut outcomes = Vec::new();
                watched.step([command.clone()], Time(0), &mut outcomes);
                alone.step([command], Time(0), &mut outcomes);
            }
            assert!(placed > 200 && refused > 100, "{policy}: {placed} placed, {refused} refused");
            watched.check_invariants().expect("the shard is whole");
        }
    }
}
