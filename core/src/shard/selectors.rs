//! Candidate sets of selectors: kept and brought up to date, not recomputed per request.
//!
//! A set too large to be walked gets a [mark](crate::index::Marks) while there is one, by which a
//! search skips the buckets that hold none of its members. A mark only prunes: which node is
//! chosen does not depend on who has one, so who has one may depend on what was asked before.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::table::NodeTable;
use crate::ids::NodeId;
use crate::index::{Candidates, Mark, Marks, Slot};
use crate::limits::{CANDIDATE_WALK_MAX, SELECTORS_KEPT_MAX};
use crate::map::FixedMap;
use crate::memory;
use crate::node::{Labels, Selector};

/// Members are kept as a list up to twice the size at which they are walked, so that one node
/// coming and going does not collect them anew each time.
pub(super) const FEW_KEPT_MAX: usize = 2 * CANDIDATE_WALK_MAX;

/// Requests with a selector that must pass before a mark goes from a set that was not used since
/// to another: giving a mark is O(nodes), and more selectors than marks may take turns.
pub(super) const MARK_IDLE_USES: u64 = 4096;

/// The marks that rankings give out; the others are for selectors.
pub(super) const MARKS_OF_RANKINGS: std::ops::Range<u8> = Mark::COUNT - 16..Mark::COUNT;

/// The nodes whose labels satisfy one selector.
pub(super) struct CandidateSet {
    selector: Arc<Selector>,
    /// No other set has it, or had it before.
    number: NonZeroU64,
    bits: Vec<u64>,
    len: usize,
    /// The members: always while they are few enough to be walked, never above `FEW_KEPT_MAX`.
    few: Option<Vec<Slot>>,
    mark: Option<Mark>,
    used: u64,
}

/// Which of the kept sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct SetId(usize);

impl CandidateSet {
    #[inline]
    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.bits.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Its number: no other set has it, or had it before.
    #[inline]
    pub(super) fn number(&self) -> NonZeroU64 {
        self.number
    }

    /// The members, if there are few. "Few" is a function of their number alone: Random draws
    /// otherwise from a walk than from a tree, and a shard that was rebuilt must go on as its
    /// twin does that lived through more.
    pub(super) fn few(&self) -> Option<&[Slot]> {
        self.few.as_deref().filter(|few| few.len() <= CANDIDATE_WALK_MAX)
    }

    /// How a search finds the members fastest.
    pub(super) fn candidates(&self) -> Candidates<'_> {
        match (self.few(), self.mark) {
            (Some(few), _) => Candidates::Walk(few),
            (None, Some(mark)) => Candidates::Marked(mark),
            (None, None) => Candidates::All,
        }
    }

    fn check_node(&self, slot: Slot, node: NodeId, labels: &Labels) -> Result<(), String> {
        if self.selector.holds(labels) == self.contains(slot) {
            return Ok(());
        }
        Err(format!("the candidate set of {:?} is stale at node {node}", self.selector.terms()))
    }

    fn wants_mark(&self) -> bool {
        self.mark.is_none() && self.len > CANDIDATE_WALK_MAX
    }

    fn set(&mut self, slot: Slot, member: bool) {
        if self.contains(slot) == member {
            return;
        }
        let word = slot as usize / 64;
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
        }
        self.bits[word] ^= 1 << (slot % 64);
        if member {
            self.len += 1
        } else {
            self.len -= 1
        }
        match &mut self.few {
            Some(few) if member && few.len() < FEW_KEPT_MAX => few.push(slot),
            Some(_) if member => self.few = None,
            Some(few) => few.retain(|&s| s != slot),
            None if self.len <= CANDIDATE_WALK_MAX => {
                let slots = (0..self.bits.len() as Slot * 64).filter(|&s| self.contains(s)).collect();
                self.few = Some(slots);
            }
            None => {}
        }
    }
}

/// The sets that a shard keeps, found by the selector's hash; the one not used for longest gives
/// way.
pub(super) struct SelectorSets {
    sets: Vec<CandidateSet>,
    by_hash: FixedMap<u64, SetId>,
    /// The set that has each mark.
    marked: [Option<SetId>; MARKS_OF_RANKINGS.start as usize],
    uses: u64,
    /// How many were ever made.
    made: u64,
}

impl Default for SelectorSets {
    fn default() -> Self {
        let marked = [None; MARKS_OF_RANKINGS.start as usize];
        Self { sets: Vec::new(), by_hash: FixedMap::default(), marked, uses: 0, made: 0 }
    }
}

impl SelectorSets {
    /// The candidate set of `selector`, made now if it is not kept; and the mark that it got just
    /// now, which the indexes have to learn.
    pub(super) fn keep(&mut self, selector: &Arc<Selector>, nodes: &NodeTable) -> (SetId, Option<Mark>) {
        self.uses += 1;
        let known = self.by_hash.get(&selector.hash()).copied();
        let id = match known {
            Some(id) if self.sets[id.0].selector == *selector => id,
            _ => self.make(selector, known, nodes),
        };
        self.sets[id.0].used = self.uses;
        let mark = if self.sets[id.0].wants_mark() { self.give_mark(id) } else { None };
        (id, mark)
    }

    fn next_number(&mut self) -> NonZeroU64 {
        self.made += 1;
        NonZeroU64::new(self.made).expect("counted from one")
    }

    pub(super) fn at(&self, id: SetId) -> &CandidateSet {
        &self.sets[id.0]
    }

    /// Makes the set of `selector`, in the place of the one of the same hash if there is one.
    fn make(&mut self, selector: &Arc<Selector>, same_hash: Option<SetId>, nodes: &NodeTable) -> SetId {
        let mut set = CandidateSet {
            selector: Arc::clone(selector),
            number: self.next_number(),
            bits: Vec::new(),
            len: 0,
            few: Some(Vec::new()),
            mark: None,
            used: self.uses,
        };
        for (slot, _, cold) in nodes.iter() {
            set.set(slot, selector.holds(&cold.registration.spec.labels));
        }
        let place = same_hash.or_else(|| {
            let full = self.sets.len() >= SELECTORS_KEPT_MAX;
            full.then(|| (0..self.sets.len()).min_by_key(|&at| self.sets[at].used).map(SetId))?
        });
        let id = place.unwrap_or(SetId(self.sets.len()));
        if let Some(old) = self.sets.get_mut(id.0) {
            self.by_hash.remove(&old.selector.hash());
            if let Some(mark) = old.mark {
                self.marked[usize::from(mark.number())] = None;
            }
            *old = set;
        } else {
            self.sets.push(set);
        }
        self.by_hash.insert(selector.hash(), id);
        id
    }

    /// Gives the set a mark: one that nobody has, else one whose set was not used for long.
    fn give_mark(&mut self, id: SetId) -> Option<Mark> {
        let last_used = |owner: &Option<SetId>| owner.map_or(0, |owner| self.sets[owner.0].used);
        let (number, owner) = (0..).zip(&self.marked).min_by_key(|(_, owner)| last_used(owner))?;
        if owner.is_some() && last_used(owner) + MARK_IDLE_USES > self.uses {
            return None;
        }
        let mark = Mark::new(number);
        if let Some(owner) = *owner {
            self.sets[owner.0].mark = None;
        }
        self.marked[usize::from(number)] = Some(id);
        self.sets[id.0].mark = Some(mark);
        Some(mark)
    }

    /// The marks that a node must have.
    pub(super) fn marks_of(&self, slot: Slot) -> Marks {
        let held = self.sets.iter().filter(|set| set.contains(slot)).filter_map(|set| set.mark);
        held.fold(Marks::NONE, |marks, mark| marks.with(mark, true))
    }

    /// The marks that some set has: others may stand in the indexes and mean nothing.
    pub(super) fn marks_given(&self) -> impl Iterator<Item = (Mark, &CandidateSet)> {
        self.sets.iter().filter_map(|set| Some((set.mark?, set)))
    }

    /// A node joined, or has new labels.
    pub(super) fn node_labelled(&mut self, slot: Slot, labels: &Labels) {
        for set in &mut self.sets {
            set.set(slot, set.selector.holds(labels));
        }
    }

    /// A node left.
    pub(super) fn node_removed(&mut self, slot: Slot) {
        for set in &mut self.sets {
            set.set(slot, false);
        }
    }

    /// What the kept sets take.
    pub(super) fn memory(&self) -> u64 {
        let of_set =
            |set: &CandidateSet| memory::of_vec(&set.bits) + set.few.as_ref().map_or(0, memory::of_vec);
        memory::of_vec(&self.sets) + memory::of_map(&self.by_hash) + self.sets.iter().map(of_set).sum::<u64>()
    }

    /// Checks every kept set against the labels of one node.
    pub(super) fn check_node(&self, slot: Slot, node: NodeId, labels: &Labels) -> Result<(), String> {
        self.sets.iter().try_for_each(|set| set.check_node(slot, node, labels))
    }

    /// Checks every kept set against the labels.
    pub(super) fn check(&self, nodes: &NodeTable) -> Result<(), String> {
        for set in &self.sets {
            let mut members = 0;
            for (slot, hot, cold) in nodes.iter() {
                set.check_node(slot, hot.id, &cold.registration.spec.labels)?;
                members += usize::from(set.contains(slot));
            }
            let few = set.few.as_ref().map_or(members, Vec::len);
            let kept = set.few.is_some() || members > CANDIDATE_WALK_MAX;
            if members != set.len || few != members || !kept {
                return Err(format!(
                    "the candidate set of {:?} counts {} of {members}",
                    set.selector.terms(),
                    set.len
                ));
            }
        }
        Ok(())
    }
}
