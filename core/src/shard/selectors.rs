//! Candidate sets of selectors: kept and brought up to date, not recomputed per request.

use std::sync::Arc;

use super::table::NodeTable;
use crate::index::Slot;
use crate::limits::{CANDIDATE_WALK_MAX, SELECTORS_KEPT_MAX};
use crate::map::FixedMap;
use crate::node::{Labels, Selector};

/// Members are kept as a list up to twice the size at which they are walked, so that one node
/// coming and going does not collect them anew each time.
const FEW_KEPT_MAX: usize = 2 * CANDIDATE_WALK_MAX;

/// The nodes whose labels satisfy one selector.
pub(super) struct CandidateSet {
    selector: Arc<Selector>,
    bits: Vec<u64>,
    len: usize,
    /// The members: always while they are few enough to be walked, never above `FEW_KEPT_MAX`.
    few: Option<Vec<Slot>>,
    used: u64,
}

impl CandidateSet {
    #[inline]
    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.bits.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// The members, if there are few. "Few" is a function of their number alone: Random draws
    /// otherwise from a walk than from a tree, and a shard that was rebuilt must go on as its
    /// twin does that lived through more.
    pub(super) fn few(&self) -> Option<&[Slot]> {
        self.few.as_deref().filter(|few| few.len() <= CANDIDATE_WALK_MAX)
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

/// The sets that a shard keeps, by the selector's hash; the one not used for longest gives way.
#[derive(Default)]
pub(super) struct SelectorSets {
    sets: FixedMap<u64, CandidateSet>,
    uses: u64,
}

impl SelectorSets {
    /// The candidate set of `selector`, made now if it is not kept.
    pub(super) fn set(&mut self, selector: &Arc<Selector>, nodes: &NodeTable) -> &CandidateSet {
        self.uses += 1;
        let uses = self.uses;
        let kept = self.sets.get(&selector.hash()).is_some_and(|set| set.selector == *selector);
        if !kept {
            self.make_room();
            let mut set = CandidateSet {
                selector: Arc::clone(selector),
                bits: Vec::new(),
                len: 0,
                few: Some(Vec::new()),
                used: uses,
            };
            for (slot, _, cold) in nodes.iter() {
                set.set(slot, selector.holds(&cold.registration.spec.labels));
            }
            self.sets.insert(selector.hash(), set);
        }
        let set = self.sets.get_mut(&selector.hash()).expect("kept or just made");
        set.used = uses;
        set
    }

    fn make_room(&mut self) {
        if self.sets.len() >= SELECTORS_KEPT_MAX
            && let Some(oldest) = self.sets.iter().map(|(&hash, set)| (set.used, hash)).min()
        {
            self.sets.remove(&oldest.1);
        }
    }

    /// A node joined, or has new labels.
    pub(super) fn node_labelled(&mut self, slot: Slot, labels: &Labels) {
        for set in self.sets.values_mut() {
            set.set(slot, set.selector.holds(labels));
        }
    }

    /// A node left.
    pub(super) fn node_removed(&mut self, slot: Slot) {
        for set in self.sets.values_mut() {
            set.set(slot, false);
        }
    }

    /// Checks every kept set against the labels.
    pub(super) fn check(&self, nodes: &NodeTable) -> Result<(), String> {
        for set in self.sets.values() {
            let mut members = 0;
            for (slot, hot, cold) in nodes.iter() {
                let member = set.selector.holds(&cold.registration.spec.labels);
                members += usize::from(member);
                if member != set.contains(slot) {
                    return Err(format!(
                        "the candidate set of {:?} is stale at node {}",
                        set.selector.terms(),
                        hot.id
                    ));
                }
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
