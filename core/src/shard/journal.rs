//! What a shard hands over for the journal after each batch.

use crate::index::{PolicyState, Slot};
use crate::journal::{Changes, Effect, NodeImage, NodeNews, Unit};
use crate::shard::Shard;
use crate::shard::books::{ADDED, COLD, IDENTITY, STATE};
use crate::state::{Done, GranularityState, PartitionState};

/// What the last unit said of the policies.
#[derive(Default)]
pub(crate) struct Journaled {
    policy: Option<PolicyState>,
    granularity: Option<GranularityState>,
}

/// A page of a checkpoint: all that some nodes hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPage {
    /// The records of the nodes, by partition.
    pub partitions: Vec<PartitionState>,
    /// The cursor and the random state of the policies, and the granularity.
    pub policy: (PolicyState, Option<GranularityState>),
    /// Where the next page begins. `None`: this was the last one.
    pub next: Option<u32>,
}

impl Shard {
    /// Notes all effects from now on, for a journal. What the shard has now is in the checkpoint and the journal.
    pub fn enable_journal(&mut self) {
        assert!(self.replica.is_none(), "a replica has no journal");
        assert!(self.journaled.is_none(), "the journal of a shard begins twice");
        self.books.note_effects();
        self.books.note_nodes();
        self.journaled = Some(Box::default());
    }

    /// Restores partitions, and notes all effects from now on. A claim that is granted at once is such an effect.
    pub(crate) fn adopt_journaled(&mut self, partitions: Vec<PartitionState>) {
        assert!(self.books.nodes.len() == 0, "a state is restored over another");
        self.books.note_effects();
        self.adopt(partitions);
        self.enable_journal();
    }

    /// Takes the effects since the last call as a unit. `done` are the requests that caused them. `None` if nothing durable
    /// changed, or without a journal. Must be called after each batch, before its outcomes are handed out.
    pub fn take_unit(&mut self, done: Vec<Done>) -> Option<Unit> {
        let (mut effects, mut unwritten) = self.books.take_effects()?;
        assert!(self.journaled.is_some(), "effects are noted for no journal");
        let mut nodes_changed = false;
        while let Some((slot, changes)) = unwritten.pop() {
            // A node that was removed has an effect of its own.
            if !self.books.nodes.is_there(slot) {
                continue;
            }
            if changes & (COLD | IDENTITY) != 0 {
                nodes_changed = true;
                let is_set = |what| changes & what != 0;
                let news = NodeNews { is_new: is_set(ADDED), spec: is_set(IDENTITY), state: is_set(STATE) };
                effects.push(Effect::Node(Box::new(self.node_image(slot)), news));
            } else {
                let hot = self.books.nodes.hot(slot);
                let version = hot.version;
                effects.push(Effect::Version { partition: hot.partition, node: hot.id, version });
            }
        }
        self.books.put_unwritten(unwritten);
        let (policy, granularity) = self.changed_policies(nodes_changed);
        let finished = self.statements.take_finished();
        let is_empty = effects.is_empty() && policy.is_none() && granularity.is_none();
        if is_empty && done.is_empty() && finished.is_empty() {
            return None;
        }
        let changes = Changes::Shard { shard: self.id, effects, policy, granularity };
        Some(Unit { now: self.now, changes, done, finished })
    }

    /// Returns the state of the policies and the granularity, each if it changed since the last unit.
    fn changed_policies(&mut self, nodes_changed: bool) -> (Option<PolicyState>, Option<GranularityState>) {
        let Some(journaled) = &mut self.journaled else { return (None, None) };
        let policy = self.choose.policy_state();
        let policy = (journaled.policy.as_ref() != Some(policy)).then(|| policy.clone());
        let is_first = journaled.policy.is_none();
        let granularity = if nodes_changed || is_first { self.choose.granularity_state() } else { None };
        let granularity = granularity.filter(|now| journaled.granularity.as_ref() != Some(now));
        if granularity.is_some() {
            journaled.granularity.clone_from(&granularity);
        }
        if policy.is_some() {
            journaled.policy.clone_from(&policy);
        }
        (policy, granularity)
    }

    /// Returns a node as the journal records it.
    fn node_image(&self, slot: Slot) -> NodeImage {
        let mut records = PartitionState::empty(self.books.nodes.hot(slot).partition);
        self.export_node_only(slot, &mut records);
        let record = records.nodes.pop().expect("the node was exported");
        let reservation = records.reservations.pop();
        NodeImage { record, reservation, claims: records.claims, releasing: records.releasing }
    }

    /// Reads one page of a checkpoint, from the slot `from` on.
    pub(super) fn read_checkpoint_page(&mut self, from: Slot) -> CheckpointPage {
        let mut partitions: Vec<PartitionState> = Vec::new();
        let slots = self.books.nodes.slots();
        let mut slot = from;
        let mut records = 0;
        while slot < slots && records < self.audit.pages.checkpoint_records as usize {
            records += 1;
            self.audit.work.nodes_looked_at += 1;
            if self.books.nodes.is_there(slot) {
                let partition = self.books.nodes.hot(slot).partition;
                let known = partitions.iter().position(|known| known.id == partition);
                let at = known.unwrap_or_else(|| {
                    partitions.push(PartitionState::empty(partition));
                    partitions.len() - 1
                });
                let partition = &mut partitions[at];
                let before = partition.allocations.len() + partition.inside.len();
                self.export_node(slot, partition);
                let exported = partition.allocations.len() + partition.inside.len() - before;
                self.audit.work.allocations_looked_at += exported as u64;
                records += exported;
            }
            slot += 1;
        }
        assert!(slot > from || from >= slots, "a page of a checkpoint has no slot");
        let owned = self.books.partitions.len();
        assert!(partitions.len() <= owned, "a checkpoint has a partition of another shard");
        let policy = (self.choose.policy_state().clone(), self.choose.granularity_state());
        CheckpointPage { partitions, policy, next: (slot < slots).then_some(slot) }
    }
}
