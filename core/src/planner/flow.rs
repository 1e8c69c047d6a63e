//! A maximal flow from kinds of things to sinks, by shortest augmenting paths (Edmonds and Karp). Each sink
//! has a minimum and a maximum.

use std::cell::Cell;

/// Computes how many things can be assigned to sinks.
///
/// There are `supply[k]` things of kind `k`. At most `edges[k][s]` of them go to sink `s`, which takes
/// `least[s]..=most[s]` in total. Returns the maximal count, with the kinds and sinks on the near side of a
/// minimal cut. Returns `None` if some sink does not get its minimum.
///
/// `looks` counts the examined pairs of a kind and a sink.
pub(super) fn assign(
    supply: &[u32],
    edges: &[Vec<u32>],
    least: &[u32],
    most: &[u32],
    looks: &Cell<u64>,
) -> Option<Assigned> {
    let mut flow = Flow {
        left: supply.to_vec(),
        gone: edges.iter().map(|of_kind| vec![0; of_kind.len()]).collect(),
        edges,
        taken: vec![0; most.len()],
        looks,
    };
    flow.fill(least);
    if flow.taken != least {
        return None;
    }
    // Sinks keep what they have, because an augmenting path ends at another sink.
    let (kinds, sinks) = flow.fill(most);
    Some(Assigned { count: flow.taken.iter().sum(), kinds, sinks })
}

/// The result of [`assign`].
pub(super) struct Assigned {
    pub(super) count: u32,
    /// The kinds with things that are not assigned, and kinds that could make room for those.
    pub(super) kinds: Vec<bool>,
    /// The sinks where those could go. All of them are full.
    pub(super) sinks: Vec<bool>,
}

struct Flow<'a> {
    left: Vec<u32>,
    edges: &'a [Vec<u32>],
    gone: Vec<Vec<u32>>,
    taken: Vec<u32>,
    looks: &'a Cell<u64>,
}

impl Flow<'_> {
    /// Augments until there is no path left. Returns the kinds and sinks that can be reached then.
    fn fill(&mut self, room: &[u32]) -> (Vec<bool>, Vec<bool>) {
        loop {
            // For a kind, the sink that it was reached from. For a sink, the kind.
            let mut kinds: Vec<Option<Option<usize>>> =
                self.left.iter().map(|&left| (left > 0).then_some(None)).collect();
            let mut sinks: Vec<Option<usize>> = vec![None; room.len()];
            let mut queue: Vec<usize> = (0..kinds.len()).filter(|&kind| kinds[kind].is_some()).collect();
            let mut end = None;
            let mut at = 0;
            while end.is_none() && at < queue.len() {
                let kind = queue[at];
                at += 1;
                self.looks.set(self.looks.get() + room.len() as u64);
                for sink in 0..room.len() {
                    if sinks[sink].is_some() || self.gone[kind][sink] >= self.edges[kind][sink] {
                        continue;
                    }
                    sinks[sink] = Some(kind);
                    if self.taken[sink] < room[sink] {
                        end = Some(sink);
                        break;
                    }
                    for (other, from) in kinds.iter_mut().enumerate() {
                        if from.is_none() && self.gone[other][sink] > 0 {
                            *from = Some(Some(sink));
                            queue.push(other);
                        }
                    }
                }
            }
            let Some(end) = end else {
                let reached = |known: &[Option<_>]| known.iter().map(Option::is_some).collect();
                return (kinds.iter().map(Option::is_some).collect(), reached(&sinks));
            };
            self.augment(&kinds, &sinks, end, room[end] - self.taken[end]);
        }
    }

    /// Sends as much as possible along the path that ends at `end`.
    fn augment(
        &mut self,
        kinds: &[Option<Option<usize>>],
        sinks: &[Option<usize>],
        end: usize,
        mut amount: u32,
    ) {
        let mut path = Vec::new();
        let mut sink = end;
        loop {
            let kind = sinks[sink].expect("a path was found");
            let from = kinds[kind].expect("a path was found");
            amount = amount.min(self.edges[kind][sink] - self.gone[kind][sink]);
            amount = amount.min(from.map_or(self.left[kind], |back| self.gone[kind][back]));
            path.push((kind, sink, from));
            let Some(back) = from else { break };
            sink = back;
        }
        for &(kind, sink, from) in &path {
            self.gone[kind][sink] += amount;
            match from {
                Some(back) => self.gone[kind][back] -= amount,
                None => self.left[kind] -= amount,
            }
        }
        self.taken[end] += amount;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn kinds_make_room_for_each_other() {
        // The first kind goes to both sinks, the second only to the first.
        let edges = [vec![9, 9], vec![9, 0]];
        let assigned =
            assign(&[2, 1], &edges, &[0, 0], &[1, 2], &Cell::new(0)).expect("no sink asks for any");
        assert_eq!(assigned.count, 3);
        let crowded = assign(&[1, 2], &edges, &[0, 0], &[1, 2], &Cell::new(0)).expect("no sink asks for any");
        assert_eq!((crowded.count, crowded.kinds, crowded.sinks), (2, vec![false, true], vec![true, false]));
        assert!(
            assign(&[1, 2], &edges, &[0, 2], &[3, 3], &Cell::new(0)).is_none(),
            "the second gets one at most"
        );
        assert_eq!(assign(&[2, 2], &edges, &[0, 2], &[1, 2], &Cell::new(0)).expect("it gets both").count, 3);
        assert_eq!(assign(&[5], &[vec![2, 1]], &[0, 0], &[9, 9], &Cell::new(0)).expect("no least").count, 3);
    }

    /// Tries all assignments of a few things. Returns the largest count, `None` if no assignment gives each
    /// sink its minimum.
    fn most_of_all(case: &Case, pair: usize, gone: &mut [[u32; 3]; 3]) -> Option<u32> {
        let sinks = case.least.len();
        let kinds = case.supply.len();
        if pair == kinds * sinks {
            let at_sink = |sink: usize| gone.iter().map(|of_kind| of_kind[sink]).sum::<u32>();
            let suits = (0..sinks).all(|sink| (case.least[sink]..=case.most[sink]).contains(&at_sink(sink)));
            return suits.then(|| (0..sinks).map(at_sink).sum());
        }
        let kind = pair / sinks;
        let sink = pair % sinks;
        let left = case.supply[kind] - gone[kind].iter().sum::<u32>();
        let most = left.min(case.edges[kind][sink]);
        let of = |sent: u32| {
            let mut gone = *gone;
            gone[kind][sink] = sent;
            most_of_all(case, pair + 1, &mut gone)
        };
        (0..=most).filter_map(of).max()
    }

    #[derive(Debug)]
    struct Case {
        supply: Vec<u32>,
        edges: Vec<Vec<u32>>,
        least: Vec<u32>,
        most: Vec<u32>,
    }

    impl Case {
        fn random(rng: &mut Rng) -> Self {
            let mut below = |bound: u64| rng.below(bound) as u32;
            let kinds = 1 + below(3);
            let sinks = 1 + below(3);
            let supply = (0..kinds).map(|_| below(4)).collect();
            let edges =
                (0..kinds).map(|_| (0..sinks).map(|_| below(4).saturating_sub(1)).collect()).collect();
            let least: Vec<u32> = (0..sinks).map(|_| below(4).saturating_sub(2)).collect();
            let most = least.iter().map(|least| least + below(3)).collect();
            Self { supply, edges, least, most }
        }

        /// Returns the capacity of the cut between what `assigned` calls near and the rest.
        fn cut(&self, assigned: &Assigned) -> u32 {
            let far_kinds = self.supply.iter().zip(&assigned.kinds).filter(|(_, near)| !**near);
            let near_sinks = self.most.iter().zip(&assigned.sinks).filter(|(_, near)| **near);
            let near_kinds = self.edges.iter().zip(&assigned.kinds).filter(|(_, near)| **near);
            let across = near_kinds.flat_map(|(of_kind, _)| of_kind.iter().zip(&assigned.sinks));
            let across = across.filter(|(_, near)| !**near).map(|(edge, _)| edge);
            far_kinds.map(|(supply, _)| supply).chain(near_sinks.map(|(most, _)| most)).chain(across).sum()
        }
    }

    #[test]
    fn as_many_are_assigned_as_any_assignment_does_and_the_cut_proves_it() {
        let mut rng = Rng::new(3);
        let mut counts = [0; 2];
        for _ in 0..4000 {
            let case = Case::random(&mut rng);
            let expected = most_of_all(&case, 0, &mut [[0; 3]; 3]);
            let assigned = assign(&case.supply, &case.edges, &case.least, &case.most, &Cell::new(0));
            assert_eq!(assigned.as_ref().map(|assigned| assigned.count), expected, "{case:?}");
            counts[usize::from(expected.is_some())] += 1;
            if let Some(assigned) = assigned {
                assert_eq!(case.cut(&assigned), assigned.count, "{case:?}");
            }
        }
        assert!(counts.iter().all(|&count| count > 500), "{counts:?}");
    }

    #[test]
    fn each_pair_of_a_kind_and_a_sink_that_is_looked_at_counts() {
        let looks = Cell::new(100);
        // The kind looks at three sinks before each of the two assignments. With nothing left, it looks no more.
        assign(&[2], &[vec![1, 1, 0]], &[0; 3], &[1; 3], &looks).expect("no sink asks for any");
        let for_least = 3;
        assert_eq!(looks.get(), 100 + for_least + 2 * 3);
    }
}
