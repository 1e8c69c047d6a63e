//! Turns by what they cost: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995).
//!
//! Each participant spends units in its turn. Costs may be known only afterwards. So who spent more than it had is passed over
//! until later turns have paid for it. Who asks for something waits for at most one turn of each other.

use std::collections::VecDeque;
use std::hash::Hash;

use crate::map::FixedMap;

/// Those who take turns, each with what it asks for. A turn has `QUANTUM` units.
#[derive(Debug)]
pub struct Rounds<K, V, const QUANTUM: i64> {
    of: FixedMap<K, Member<V>>,
    /// Each once. The first one has its turn.
    turns: VecDeque<K>,
}

#[derive(Debug, Default)]
struct Member<V> {
    asks: V,
    /// The units that it may spend in this turn. Negative: the overdraft.
    left: i64,
}

impl<K, V, const QUANTUM: i64> Default for Rounds<K, V, QUANTUM> {
    fn default() -> Self {
        Self { of: FixedMap::default(), turns: VecDeque::new() }
    }
}

impl<K: Copy + Eq + Hash, V: Default, const QUANTUM: i64> Rounds<K, V, QUANTUM> {
    /// Returns whether nobody takes part.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Returns how many take part.
    #[must_use]
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Returns what one who takes part asks for.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.of.get_mut(key).map(|member| &mut member.asks)
    }

    /// Returns what all who take part ask for, in any order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.of.values().map(|member| &member.asks)
    }

    fn member(&mut self, key: K) -> &mut Member<V> {
        self.of.entry(key).or_insert_with(|| {
            self.turns.push_back(key);
            Member::default()
        })
    }

    /// Returns what somebody asks for, who takes part from now on.
    pub fn entry(&mut self, key: K) -> &mut V {
        &mut self.member(key).asks
    }

    /// Charges somebody for what was done.
    pub fn charge(&mut self, key: K, units: u64) {
        let member = self.member(key);
        member.left = member.left.saturating_sub(i64::try_from(units).unwrap_or(i64::MAX));
    }

    /// Returns who has the turn, with what it asks for, and whether it may spend. `None`: nobody takes part.
    pub fn first(&mut self) -> Option<(K, &mut V, bool)> {
        let key = *self.turns.front()?;
        let member = self.of.get_mut(&key).expect("who has turns takes part");
        Some((key, &mut member.asks, member.left >= 0))
    }

    /// Ends the turn. Who asks for nothing and owes nothing takes part no longer: it saves nothing for later.
    ///
    /// # Panics
    /// If nobody takes part.
    pub fn end_turn(&mut self, asks_for_nothing: impl FnOnce(&V) -> bool) {
        let key = self.turns.pop_front().expect("somebody has the turn");
        let member = self.of.get_mut(&key).expect("who has turns takes part");
        member.left = (member.left + QUANTUM).min(QUANTUM);
        if member.left >= 0 && asks_for_nothing(&member.asks) {
            self.of.remove(&key);
        } else {
            self.turns.push_back(key);
        }
    }

    /// Forgets all who take part, and what they owe.
    pub fn clear(&mut self) {
        self.of.clear();
        self.turns.clear();
    }
}
