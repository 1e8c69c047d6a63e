//! Candidate sets of selectors. They are cached and kept up to date, not recomputed per request. A set that is
//! not cached is computed from the [nodes by their labels](crate::shard::choose::label_index), in words of 64 nodes.
//!
//! A set too large to be walked gets a [mark](crate::index::Marks) if one is available. With the mark, a search
//! skips the buckets without members. A mark only prunes the search: it never affects the choice of node. So
//! the assignment of marks may depend on the history of requests.

use crate::broken::{Broken, broken};
use std::ops::Range;
use std::sync::Arc;

use super::Choose;
use super::label_index::LabelIndex;
use super::node_set::{Bits, LookedAt};
use crate::ids::NodeId;
use crate::index::{Candidates, Mark, Marks, Meter, Slot, Structure};
use crate::limits::{CANDIDATE_WALK_MAX, SELECTORS_KEPT_MAX};
use crate::lru::Lru;
use crate::memory;
use crate::node::{Labels, Selector};
use crate::shard::books::Books;
use crate::shard::books::NodeTable;

/// Members are kept as a list up to twice the size at which they are walked. A node that leaves and rejoins
/// then does not rebuild the list each time.
pub(crate) const FEW_KEPT_MAX: usize = 2 * CANDIDATE_WALK_MAX;

/// The number of requests with a selector before a mark may move from one set to another, or the number of
/// nodes if that is larger. Giving a mark is O(nodes), and more selectors than marks may take turns.
pub(crate) const MARK_IDLE_USES: u64 = 4096;

/// The marks that rankings use. The others are for selectors.
pub(crate) const MARKS_OF_RANKINGS: std::ops::Range<u8> = Mark::COUNT - 16..Mark::COUNT;

/// The nodes whose labels satisfy one selector.
pub(crate) struct CandidateSet {
    selector: Arc<Selector>,
    bits: Bits,
    /// The members. Always present while they are few enough to be walked, never above `FEW_KEPT_MAX`.
    few: Option<Vec<Slot>>,
    mark: Option<Mark>,
}

/// Identifies a cached set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetId(usize);

impl SetId {
    /// Returns what a meter is told that members of the set are read from.
    pub(crate) fn structure(self) -> Structure {
        // At most `SELECTORS_KEPT_MAX` sets are kept.
        Structure::Members(self.0 as u16)
    }
}

impl CandidateSet {
    #[inline]
    pub(crate) fn contains(&self, slot: Slot) -> bool {
        self.bits.contains(slot)
    }

    /// Returns the members as a list, if there are few. This depends only on their number: Random draws
    /// differently from a list than from a tree, and a rebuilt shard must behave like the original.
    pub(crate) fn few(&self) -> Option<&[Slot]> {
        self.few.as_deref().filter(|few| few.len() <= CANDIDATE_WALK_MAX)
    }

    /// Returns how a search finds the members fastest.
    pub(crate) fn candidates(&self) -> Candidates<'_> {
        match (self.few(), self.mark) {
            (Some(few), _) => Candidates::Walk(few),
            (None, Some(mark)) => Candidates::Marked(mark),
            (None, None) => Candidates::All,
        }
    }

    fn check_node(&self, slot: Slot, node: NodeId, labels: &Labels) -> Result<(), Broken> {
        if self.selector.holds(labels) == self.contains(slot) {
            return Ok(());
        }
        Err(broken!("the candidate set of {:?} is stale at node {node}", self.selector.terms()))
    }

    /// Returns the number of members if a search cannot skip non-members. That is so if the set has no mark and
    /// is too large to be walked.
    pub(crate) fn unmarked(&self) -> Option<usize> {
        (self.mark.is_none() && self.bits.len() > CANDIDATE_WALK_MAX).then(|| self.bits.len())
    }

    /// Returns all members.
    pub(crate) fn members(&self) -> Vec<Slot> {
        self.bits.iter().collect()
    }

    /// Returns the members in a range of slots.
    pub(crate) fn members_in(&self, range: Range<Slot>) -> impl Iterator<Item = Slot> + '_ {
        self.bits.iter_in(range)
    }

    /// Returns the number of members in a range of slots.
    pub(crate) fn count_in(&self, range: Range<Slot>) -> u64 {
        self.bits.count_in(range)
    }

    fn set(&mut self, slot: Slot, member: bool) {
        if !self.bits.set(slot, member) {
            return;
        }
        match &mut self.few {
            Some(few) if member && few.len() < FEW_KEPT_MAX => few.push(slot),
            Some(_) if member => self.few = None,
            Some(few) => few.retain(|&s| s != slot),
            None if self.bits.len() <= CANDIDATE_WALK_MAX => self.few = Some(self.bits.iter().collect()),
            None => {}
        }
        let is_listed = self.few.as_ref().is_none_or(|few| few.len() == self.bits.len());
        assert!(is_listed, "the list of a candidate set has others than its members");
    }
}

impl Choose {
    /// Returns the candidate set of `selector`. If the set gets a mark, updates the indexes.
    pub(crate) fn keep_selector(&mut self, books: &Books, selector: &Arc<Selector>) -> SetId {
        let (id, marked) = self.selectors.keep(selector, &books.nodes);
        if let Some(mark) = marked {
            let set = self.selectors.at(id);
            self.index.assign(mark, |slot| set.contains(slot));
            self.capacities.assign(mark, |slot| set.contains(slot));
        }
        id
    }
}

/// The sets that a shard caches, found by the selector's hash.
pub(crate) struct SelectorSets {
    labels: LabelIndex,
    sets: Lru<CandidateSet, SELECTORS_KEPT_MAX>,
    /// The set that has each mark.
    marked: [Option<SetId>; MARKS_OF_RANKINGS.start as usize],
    /// The time when each mark was last given. Zero if never.
    given: [u64; MARKS_OF_RANKINGS.start as usize],
    pub(crate) looked_at: LookedAt,
}

impl Default for SelectorSets {
    fn default() -> Self {
        let marked = [None; MARKS_OF_RANKINGS.start as usize];
        let given = [0; MARKS_OF_RANKINGS.start as usize];
        Self {
            labels: LabelIndex::default(),
            sets: Lru::default(),
            marked,
            given,
            looked_at: LookedAt::default(),
        }
    }
}

impl SelectorSets {
    /// Returns the candidate set of `selector`, and creates it if it is not cached. Also returns the mark if
    /// the set just got one; the caller must then update the indexes.
    pub(crate) fn keep(&mut self, selector: &Arc<Selector>, nodes: &NodeTable) -> (SetId, Option<Mark>) {
        let known = self.sets.find(selector.hash(), |set| set.selector == *selector);
        let id = SetId(known.unwrap_or_else(|| self.make(selector, nodes)));
        let mark = self.at(id).unmarked().and_then(|_| self.give_mark(id, nodes.len()));
        (id, mark)
    }

    pub(crate) fn at(&self, id: SetId) -> &CandidateSet {
        self.sets.at(id.0)
    }

    /// Tells that the members of a set in a range of slots are read.
    #[inline(always)]
    pub(crate) fn tell_members(&self, id: SetId, range: Range<Slot>, meter: &mut impl Meter) {
        let [from, to] = [range.start as usize / 64, (range.end as usize).div_ceil(64)];
        let has_any = !range.is_empty();
        let words = if has_any { to.min(self.at(id).bits.words() as usize).saturating_sub(from) } else { 0 };
        meter.items::<u64>(id.structure(), from, words);
    }

    /// Creates the set of `selector`.
    fn make(&mut self, selector: &Arc<Selector>, nodes: &NodeTable) -> usize {
        self.labels.build(nodes, &mut self.looked_at);
        let bits = self.labels.members(selector, &mut self.looked_at);
        assert!(bits.len() <= nodes.len(), "more nodes are selected than there are");
        let set = CandidateSet {
            selector: Arc::clone(selector),
            few: (bits.len() <= FEW_KEPT_MAX).then(|| bits.iter().collect()),
            bits,
            mark: None,
        };
        let (at, replaced) = self.sets.insert(selector.hash(), set);
        assert!(at < SELECTORS_KEPT_MAX, "more candidate sets are kept than may be");
        if let Some(mark) = replaced.and_then(|set| set.mark) {
            let owner = self.marked[usize::from(mark.number())].take();
            assert!(owner.is_some_and(|of| of.0 == at), "mark {} is that of another set", mark.number());
        }
        at
    }

    /// Gives the set a mark: a free one, else one whose set has been idle for long.
    fn give_mark(&mut self, id: SetId, nodes: usize) -> Option<Mark> {
        let last_used = |owner: &Option<SetId>| owner.map_or(0, |owner| self.sets.used(owner.0));
        // A mark is also in use from the time it was given, even if its set was replaced. Otherwise, sets that
        // replace each other in turn would each free a mark.
        let idle_since =
            self.marked.iter().zip(&self.given).map(|(owner, &given)| last_used(owner).max(given));
        let (since, number) = idle_since.zip(0..).min()?;
        let owner = &self.marked[usize::from(number)];
        assert!(since <= self.sets.uses(), "mark {number} was used after now");
        if since > 0 && since + MARK_IDLE_USES.max(nodes as u64) > self.sets.uses() {
            return None;
        }
        self.given[usize::from(number)] = self.sets.uses();
        self.looked_at.nodes += nodes as u64;
        let mark = Mark::new(number);
        if let Some(owner) = *owner {
            let had = self.sets.at_mut(owner.0).mark.take();
            assert!(had == Some(mark), "mark {number} is that of another set");
        }
        self.marked[usize::from(number)] = Some(id);
        self.sets.at_mut(id.0).mark = Some(mark);
        Some(mark)
    }

    /// Returns the marks that a node must have.
    pub(crate) fn marks_of(&self, slot: Slot) -> Marks {
        let held = self.sets.iter().filter(|set| set.contains(slot)).filter_map(|set| set.mark);
        held.fold(Marks::NONE, |marks, mark| marks.with(mark, true))
    }

    /// Returns the marks in use. Other marks in the indexes have no meaning.
    pub(crate) fn marks_given(&self) -> impl Iterator<Item = (Mark, &CandidateSet)> {
        self.sets.iter().filter_map(|set| Some((set.mark?, set)))
    }

    /// Returns the nodes by their labels.
    pub(crate) fn labels(&self) -> &LabelIndex {
        &self.labels
    }

    /// Returns the nodes by their labels. Builds the index if necessary.
    pub(crate) fn labels_of(&mut self, nodes: &NodeTable) -> &LabelIndex {
        self.labels.build(nodes, &mut self.looked_at);
        &self.labels
    }

    /// Notes that a node joined or changed its labels.
    pub(crate) fn node_labelled(&mut self, slot: Slot, labels: &Labels) {
        self.labels.set(slot, Some(labels));
        for set in self.sets.iter_mut() {
            set.set(slot, set.selector.holds(labels));
        }
    }

    /// Notes that a node left.
    pub(crate) fn node_removed(&mut self, slot: Slot) {
        self.labels.set(slot, None);
        for set in self.sets.iter_mut() {
            set.set(slot, false);
        }
    }

    /// Returns the bytes of the cached sets.
    pub(crate) fn memory(&self) -> u64 {
        let of_set = |set: &CandidateSet| set.bits.memory() + set.few.as_ref().map_or(0, memory::of_vec);
        self.sets.bytes() + self.sets.iter().map(of_set).sum::<u64>()
    }

    /// Checks every cached set against the labels of one node.
    pub(crate) fn check_node(&self, slot: Slot, node: NodeId, labels: &Labels) -> Result<(), Broken> {
        self.sets.iter().try_for_each(|set| set.check_node(slot, node, labels))
    }

    /// Checks every cached set against the labels.
    pub(crate) fn check(&self, nodes: &NodeTable) -> Result<(), Broken> {
        self.labels.check(nodes)?;
        for set in self.sets.iter() {
            let mut members = 0;
            for (slot, hot, cold) in nodes.iter() {
                set.check_node(slot, hot.id, &cold.registration.spec.labels)?;
                members += usize::from(set.contains(slot));
            }
            let few = set.few.as_ref().map_or(members, Vec::len);
            let kept = set.few.is_some() || members > CANDIDATE_WALK_MAX;
            if members != set.bits.len() || few != members || !kept {
                return Err(broken!(
                    "the candidate set of {:?} counts {} of {members}",
                    set.selector.terms(),
                    set.bits.len()
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Incarnation, Ordinal, PartitionId, ShardId};
    use crate::index::Geometry;
    use crate::node::{NodeRegistration, NodeSpec, Operator, Taints, Term};
    use crate::resource::Amount;
    use crate::shard::{Command, HybridSettings, Shard, ShardConfig};
    use crate::time::Time;

    /// A shard of three nodes, which keeps a set of all of them.
    fn shard() -> Shard {
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry: Geometry::default(),
            seed: 0,
            hybrid: HybridSettings::default(),
        });
        for number in 1..=3 {
            let spec = NodeSpec {
                name: format!("n{number}").into(),
                identity: None,
                cpu: Amount::whole(8),
                memory: Amount::whole(1024),
                gpus: 0,
                custom: None,
                labels: Labels::new(vec![("zone".into(), "a".into())]).expect("one key"),
                taints: Taints::default(),
            };
            let id = NodeId(number);
            let ordinal = Ordinal(number);
            let node = NodeRegistration { id, ordinal, partition: PartitionId(0), spec, agent: None };
            shard.step([Command::AddNode(Box::new(node))], Time(0), &mut Vec::new());
        }
        let term = Term { key: "zone".into(), operator: Operator::Exists, values: Vec::new() };
        shard.choose.keep_selector(&shard.books, &Arc::new(Selector::new(vec![term])));
        shard
    }

    #[test]
    fn a_set_that_counts_other_nodes_than_there_are_is_told() {
        let told = |damage: fn(&mut CandidateSet)| {
            let mut shard = shard();
            damage(shard.choose.selectors.sets.at_mut(0));
            shard.choose.selectors.check(&shard.books.nodes)
        };
        assert_eq!(told(|_| {}), Ok(()));
        let damages: [fn(&mut CandidateSet); 4] = [
            // A member that is no node, in the bits alone and in the list alone.
            |set| assert!(set.bits.set(40, true)),
            |set| set.few.as_mut().expect("they are few").push(40),
            // A member that the list has not, and few members without a list.
            |set| assert!(set.few.as_mut().expect("they are few").pop().is_some()),
            |set| set.few = None,
        ];
        for damage in damages {
            let message = told(damage).expect_err("the set is damaged");
            assert!(message.what().contains("counts"), "{message}");
        }
    }
}
