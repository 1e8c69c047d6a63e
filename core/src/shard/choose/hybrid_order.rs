//! The order of the hybrid policy: finds the n-th fitting node without looking at every node before it.
//!
//! The nodes are kept in order, in chunks of at most 128. Each chunk has lower and upper bounds on the room of
//! its nodes. A search counts a chunk at once if all of its nodes fit, and skips it if none can. In other
//! chunks it looks at each node, whose room is stored with its place. So it visits one chunk per 64 to 128
//! nodes before the result, and single nodes only where fitting and non-fitting nodes are mixed.

use crate::ids::Ordinal;
use crate::index::{Slot, Visits};
use crate::memory;
use crate::request::PlacementRequest;
use crate::resource::Demand;
use crate::rng::Rng;
use crate::shard::books::Room;

/// The number of nodes above which a chunk is split.
const ROOM: usize = 128;

/// Score, order of registration, and slot.
pub(crate) type Place = (u16, Ordinal, Slot);

#[derive(Clone, Copy)]
struct Entry {
    place: Place,
    room: Room,
}

/// Some nodes that are consecutive in the order. Never empty.
struct Chunk {
    entries: Vec<Entry>,
    /// Lower and upper bounds on the room of all nodes, per dimension.
    least: Room,
    most: Room,
    /// True if the bounds may be looser than necessary.
    stale: bool,
}

impl Chunk {
    fn of(entries: Vec<Entry>) -> Self {
        let room = entries[0].room;
        let mut chunk = Self { entries, least: room, most: room, stale: false };
        chunk.settle();
        chunk
    }

    fn settle(&mut self) {
        let first = self.entries[0].room;
        (self.least, self.most, self.stale) = (first, first, false);
        for at in 1..self.entries.len() {
            self.include(at);
        }
    }

    fn include(&mut self, at: usize) {
        let room = self.entries[at].room;
        self.least = self.least.least(&room);
        self.most = self.most.most(&room);
    }

    fn position(&self, place: &Place) -> Result<usize, usize> {
        self.entries.binary_search_by_key(place, |entry| entry.place)
    }
}

/// The parameters of a search.
pub(crate) struct Sought<'a> {
    pub(crate) request: &'a PlacementRequest,
    /// True if every node with enough cpu, memory and GPUs is accepted.
    pub(crate) any: bool,
    /// The number of first nodes that a draw is from, at least one.
    pub(crate) drawn_from: u64,
    /// A node that wins if it fits and no fitting node has a lower score.
    pub(crate) preferred: Option<Slot>,
}

impl Sought<'_> {
    fn demand(&self) -> &Demand {
        &self.request.demand
    }
}

/// The nodes that take work, ordered by score and registration.
#[derive(Default)]
pub(crate) struct HybridOrder {
    chunks: Vec<Chunk>,
    /// Indexed by slot.
    places: Vec<Option<Place>>,
}

impl HybridOrder {
    /// Returns the bytes used.
    pub(crate) fn memory(&self) -> u64 {
        let entries = self.chunks.iter().map(|chunk| memory::of_vec(&chunk.entries));
        memory::of_vec(&self.chunks) + entries.sum::<u64>() + memory::of_vec(&self.places)
    }

    /// Sets the place and the room of `slot`, or removes it.
    pub(crate) fn set(&mut self, slot: Slot, now: Option<(u16, Ordinal)>, room: Room) {
        let place = now.map(|(score, ordinal)| (score, ordinal, slot));
        if self.places.len() <= slot as usize {
            self.places.resize(slot as usize + 1, None);
        }
        let before = std::mem::replace(&mut self.places[slot as usize], place);
        if let Some(before) = before {
            let (at, within) = self.find(&before).expect("it is at its place");
            let chunk = &mut self.chunks[at];
            chunk.stale = true;
            if Some(before) == place {
                chunk.entries[within].room = room;
                chunk.include(within);
                return;
            }
            chunk.entries.remove(within);
            if chunk.entries.is_empty() {
                self.chunks.remove(at);
            }
        }
        if let Some(place) = place {
            self.insert(Entry { place, room });
        }
    }

    /// Returns the chunk that contains a place or into which it belongs.
    fn chunk(&self, place: &Place) -> usize {
        self.chunks.partition_point(|chunk| chunk.entries[0].place <= *place).saturating_sub(1)
    }

    fn find(&self, place: &Place) -> Option<(usize, usize)> {
        let at = self.chunk(place);
        Some((at, self.chunks.get(at)?.position(place).ok()?))
    }

    fn insert(&mut self, entry: Entry) {
        let at = self.chunk(&entry.place);
        let next = self.chunks.get(at + 1).map(|next| next.entries[0].place);
        assert!(next.is_none_or(|next| entry.place < next), "{:?} is in the wrong chunk", entry.place);
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push(Chunk::of(vec![entry]));
            return;
        };
        let within = chunk.position(&entry.place).expect_err("no two nodes share a place");
        chunk.entries.insert(within, entry);
        assert!(chunk.entries.len() <= ROOM + 1, "a chunk is not split");
        chunk.include(within);
        if chunk.entries.len() > ROOM {
            let upper = chunk.entries.split_off(ROOM / 2);
            chunk.settle();
            self.chunks.insert(at + 1, Chunk::of(upper));
        }
    }

    pub(crate) fn place(&self, slot: Slot) -> Option<(u16, Ordinal)> {
        self.places.get(slot as usize).copied().flatten().map(|(score, ordinal, _)| (score, ordinal))
    }

    /// Returns the room of a node as of its last update in the order.
    pub(crate) fn room(&self, slot: Slot) -> Option<Room> {
        let (at, within) = self.find(&self.places.get(slot as usize).copied().flatten()?)?;
        Some(self.chunks[at].entries[within].room)
    }

    /// Chooses among all nodes that `accept` accepts. `accept` must reject nodes without enough cpu, memory and
    /// GPUs.
    pub(crate) fn choose(
        &mut self,
        sought: &Sought<'_>,
        rng: &mut Rng,
        visits: &mut Visits,
        accept: impl Fn(Slot) -> bool,
    ) -> Option<Slot> {
        assert!(sought.drawn_from > 0, "a draw is from no node");
        let (first, _, _) = self.nth(0, sought, visits, &accept).ok()?;
        if let Some(preferred) = self.preferred(sought, visits, &accept)
            && preferred.0 <= first
        {
            return Some(preferred.2);
        }
        let found = self.nth(rng.below(sought.drawn_from), sought, visits, &accept);
        // If fewer nodes fit than the draw covers, draw again among those that fit.
        let found = found.or_else(|fitting| self.nth(rng.below(fitting), sought, visits, &accept));
        Some(found.expect("so many were counted").2)
    }

    /// Like [`choose`](Self::choose), among `slots`.
    pub(crate) fn choose_of(
        &self,
        slots: &[Slot],
        sought: &Sought<'_>,
        rng: &mut Rng,
        visits: &mut Visits,
        accept: impl Fn(Slot) -> bool,
    ) -> Option<Slot> {
        let place = |&slot: &Slot| self.places.get(slot as usize).copied().flatten();
        let mut fitting: Vec<Place> = slots.iter().filter_map(place).collect();
        fitting.retain(|&(.., slot)| {
            visits.nodes += 1;
            accept(slot)
        });
        fitting.sort_unstable();
        draw_of(&fitting, self.preferred(sought, visits, &accept), sought.drawn_from, rng)
    }

    fn preferred(
        &self,
        sought: &Sought<'_>,
        visits: &mut Visits,
        accept: &impl Fn(Slot) -> bool,
    ) -> Option<Place> {
        let place = self.places.get(sought.preferred? as usize).copied().flatten()?;
        visits.nodes += 1;
        accept(place.2).then_some(place)
    }

    /// Returns the `n`-th accepted node, counted from 0, or the number of accepted nodes if there are no more
    /// than `n`.
    fn nth(
        &mut self,
        n: u64,
        sought: &Sought<'_>,
        visits: &mut Visits,
        accept: &impl Fn(Slot) -> bool,
    ) -> Result<Place, u64> {
        let demand = sought.demand();
        let mut passed = 0;
        for chunk in &mut self.chunks {
            visits.vertices += 1;
            if !chunk.most.covers(demand) {
                continue;
            }
            let even = sought.any && chunk.least.covers(demand);
            if even && passed + (chunk.entries.len() as u64) <= n {
                passed += chunk.entries.len() as u64;
                continue;
            }
            if even {
                return Ok(chunk.entries[(n - passed) as usize].place);
            }
            if chunk.stale {
                chunk.settle();
            }
            for entry in &chunk.entries {
                visits.nodes += 1;
                if entry.room.covers(demand) && (sought.any || accept(entry.place.2)) {
                    if passed == n {
                        return Ok(entry.place);
                    }
                    passed += 1;
                }
            }
        }
        assert!(passed <= n, "node {n} of {passed} was passed");
        Err(passed)
    }
}

/// Chooses among fitting nodes in order. `preferred` is one of them.
pub(crate) fn draw_of(
    fitting: &[Place],
    preferred: Option<Place>,
    drawn_from: u64,
    rng: &mut Rng,
) -> Option<Slot> {
    let &(first, ..) = fitting.first()?;
    assert!(preferred.is_none_or(|place| place >= fitting[0]), "a preferred node does not fit");
    if let Some(preferred) = preferred
        && preferred.0 <= first
    {
        return Some(preferred.2);
    }
    let drawn = rng.below(drawn_from) as usize;
    let drawn = if drawn < fitting.len() { drawn } else { rng.below(fitting.len() as u64) as usize };
    Some(fitting[drawn].2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeState;
    use crate::request::Policy;
    use crate::resource::Amount;

    fn room(cpu: u32) -> Room {
        Room {
            cpu: Amount::whole(cpu),
            memory: Amount::whole(100),
            places: 1,
            state: Some(NodeState::Ready),
            ..Room::VACANT
        }
    }

    fn request(cpu: u32) -> PlacementRequest {
        let demand = Demand { cpu: Amount::whole(cpu), ..Demand::default() };
        PlacementRequest::new(demand, Policy::Hybrid)
    }

    fn sought(request: &PlacementRequest, drawn_from: u64, preferred: Option<Slot>) -> Sought<'_> {
        Sought { request, any: true, drawn_from, preferred }
    }

    #[test]
    fn a_draw_is_uniform_over_the_first_that_fit() {
        let mut order = HybridOrder::default();
        for slot in 0..40u32 {
            let place = (u16::from(slot >= 20) * 6000, Ordinal(u64::from(slot)));
            order.set(slot, Some(place), room(if slot % 2 == 0 { 4 } else { 1 }));
        }
        let mut rng = Rng::new(3);
        let asked = request(2);
        let sought = sought(&asked, 8, None);
        let even = |slot: Slot| slot.is_multiple_of(2);
        // The first 8 that fit are 0, 2, …, 14. Of the seven candidates, five fit.
        for (few, expected) in [
            (None, (0..16).step_by(2).collect::<Vec<Slot>>()),
            (Some([38, 1, 4, 30, 8, 33, 0]), vec![0, 4, 8, 30, 38]),
        ] {
            let mut counts = [0i64; 40];
            let draws = 1000 * expected.len() as i64;
            for _ in 0..draws {
                let mut visits = Visits::default();
                let found = match few {
                    None => order.choose(&sought, &mut rng, &mut visits, even),
                    Some(few) => order.choose_of(&few, &sought, &mut rng, &mut visits, even),
                };
                counts[found.unwrap() as usize] += 1;
                assert!(visits.nodes <= 16, "{visits:?}");
            }
            let chi: i64 = expected.iter().map(|&slot| (counts[slot as usize] - 1000).pow(2)).sum();
            // 24.3 is the 0.999 quantile of chi-square with 7 degrees of freedom.
            assert!(chi < 24_300, "{counts:?}");
            assert_eq!(expected.iter().map(|&slot| counts[slot as usize]).sum::<i64>(), draws);
        }
    }

    #[test]
    fn a_preferred_node_wins_unless_another_is_less_used() {
        let mut order = HybridOrder::default();
        for (slot, score) in [(0, 6000), (1, 6000), (2, 7000)] {
            order.set(slot, Some((score, Ordinal(u64::from(slot)))), room(4));
        }
        let asked = request(1);
        let choose = |order: &mut HybridOrder, preferred| {
            let sought = sought(&asked, 1, Some(preferred));
            order.choose(&sought, &mut Rng::new(1), &mut Visits::default(), |_| true)
        };
        assert_eq!(choose(&mut order, 1), Some(1));
        assert_eq!(choose(&mut order, 2), Some(0));
        order.set(0, None, room(4));
        order.set(1, Some((8000, Ordinal(1))), room(4));
        assert_eq!(choose(&mut order, 2), Some(2));
    }

    #[test]
    fn chunks_are_counted_and_few_nodes_looked_at() {
        let mut order = HybridOrder::default();
        let mut rng = Rng::new(9);
        let mut nodes: Vec<Option<(u16, u32)>> = vec![None; 6000];
        for step in 0..30_000 {
            let slot = rng.below(6000) as u32;
            let now = (rng.below(8) > 0).then(|| (rng.below(4) as u16 * 1000, rng.below(40) as u32 + 8));
            nodes[slot as usize] = now;
            let place = now.map(|(score, _)| (score, Ordinal(u64::from(slot))));
            order.set(slot, place, room(now.map_or(0, |(_, cpu)| cpu)));
            if step % 100 > 0 {
                continue;
            }
            for asked in [1, 20, 48] {
                let mut fitting: Vec<(u16, u32)> = (0..)
                    .zip(&nodes)
                    .filter_map(|(slot, node)| {
                        node.filter(|&(_, cpu)| cpu >= asked).map(|(score, _)| (score, slot))
                    })
                    .collect();
                fitting.sort_unstable();
                let mut visits = Visits::default();
                let n = rng.below(fitting.len() as u64 + 2);
                let asked = request(asked);
                let found = order.nth(n, &sought(&asked, 1, None), &mut visits, &|_| true);
                let expected = fitting.get(n as usize).map(|&(_, slot)| slot).ok_or(fitting.len() as u64);
                assert_eq!(found.map(|place| place.2), expected);
                assert!(visits.vertices <= 6000 / (ROOM as u64 / 8), "{visits:?}");
                let mixed = asked.demand.cpu == Amount::whole(20);
                assert!(mixed || visits.nodes <= ROOM as u64, "{visits:?}");
            }
        }
    }
}
