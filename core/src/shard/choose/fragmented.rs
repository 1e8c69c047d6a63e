//! Adapts a shard's nodes to the fragmentation-aware policies, and places by them.

use super::rankings::{RankingId, Tier};
use super::selectors::SetId;
use super::{Choice, Choose, Eligibility, Eligible};
use crate::fragmentation::{Among, Fragmentation, NodeRoom, Nodes};
use crate::ids::Ordinal;
use crate::index::{Candidates, Slot, Visits};
use crate::node::GPU_MODEL_LABEL;
use crate::request::{PlacementRequest, Rank};
use crate::shard::books::{Books, FreeBooks, NodeTable};

/// The maximum number of candidates that are rated one by one. Larger sets use short lists.
const WALKED_MAX: usize = 32;

impl Nodes for NodeTable {
    fn room(&self, slot: Slot) -> Option<NodeRoom<'_>> {
        let room = Self::room(self, slot);
        room.takes_work().then(|| NodeRoom { cpu: room.cpu, memory: room.memory, gpus: &self.hot(slot).gpus })
    }

    fn identity(&self, slot: Slot) -> (Ordinal, Option<&str>) {
        let registration = &self.cold(slot).registration;
        (registration.ordinal, registration.spec.labels.get(GPU_MODEL_LABEL))
    }

    fn slots(&self) -> usize {
        self.rooms().len()
    }
}

/// Nodes as the owner of their reservation sees them.
pub(super) struct AsOwner<'a> {
    pub(super) nodes: &'a NodeTable,
    /// The free amounts of the reserved nodes that are rated, in order of slot.
    pub(super) free: Vec<(Slot, FreeBooks)>,
}

impl Nodes for AsOwner<'_> {
    fn room(&self, slot: Slot) -> Option<NodeRoom<'_>> {
        let Ok(at) = self.free.binary_search_by_key(&slot, |&(slot, _)| slot) else {
            return Nodes::room(self.nodes, slot);
        };
        let FreeBooks { room, gpus, .. } = &self.free[at].1;
        room.takes_work().then_some(NodeRoom { cpu: room.cpu, memory: room.memory, gpus })
    }

    fn identity(&self, slot: Slot) -> (Ordinal, Option<&str>) {
        self.nodes.identity(slot)
    }

    fn slots(&self) -> usize {
        Nodes::slots(self.nodes)
    }
}

impl Choose {
    /// Returns the measures of fragmentation.
    pub(crate) fn fragmentation_mut(&mut self) -> &mut Fragmentation {
        &mut self.fragmentation
    }

    /// Chooses a node and GPU instances by fragmentation.
    pub(super) fn choose_least_fragmented(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        set: Option<SetId>,
    ) -> Option<Choice> {
        let nodes = &books.nodes;
        self.fragmentation.handle_arrival(request, nodes);
        let Self { selectors, rankings, fragmentation, visits, .. } = self;
        let few = set.and_then(|set| selectors.at(set).few());
        let among = few.map_or(Among::All, Among::Few);
        let demand = &request.demand;
        let eligible = Eligible::of(selectors, rankings, books, request, Eligibility::Plain(set));
        let accept = |slot| {
            let accepted = (demand.custom.is_none() || nodes.fits(slot, demand)) && eligible.allows(slot);
            accepted.then_some(Rank::EQUAL)
        };
        let slot = choose(fragmentation, request, among, nodes, accept, visits)?;
        assert!(nodes.takes_work(slot), "a node was chosen that takes no new work");
        assert!(nodes.fits(slot, demand), "a node was chosen that does not fit");
        Some(self.with_instances(books, request, slot, 0))
    }

    /// Returns the choice of a node, with the GPU instances that fragment it least.
    fn with_instances(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        slot: Slot,
        alternative: u8,
    ) -> Choice {
        let gpus = self.fragmentation.instances(request, slot, &books.nodes);
        assert!(gpus.units() == request.demand.gpu.units(), "other GPUs were chosen than are asked");
        Choice { slot, gpus: Some(gpus), alternative, is_own: false }
    }

    /// Like [`choose_least_fragmented`](Self::choose_least_fragmented), among the nodes with the smallest rank.
    pub(super) fn choose_least_fragmented_ranked(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        id: RankingId,
    ) -> Option<Choice> {
        let nodes = &books.nodes;
        self.fragmentation.handle_arrival(request, nodes);
        let preferred = self.best_preferred(books, request, id);
        // A fitting node of the smallest rank that has one.
        let first = self.find_ranked(books, request, id)?;
        let Self { selectors, rankings, fragmentation, visits, .. } = self;
        let ranking = rankings.at(id);
        let first = ranking.rank(first);
        let slot = match preferred {
            // The preferred node comes before the weights of preferred selectors, and before the policy.
            Some((group, slot)) if group <= first.group() => slot,
            _ => {
                let tier = ranking.tiers().iter().find(|tier| tier.rank == first);
                let among = match tier.map(Tier::candidates) {
                    Some(Candidates::Walk(few)) => Among::Few(few),
                    _ => Among::Ranked(first),
                };
                // Only the list of all ranks can contain other ranks.
                let all = request.candidates.is_none() && matches!(among, Among::Ranked(_));
                let custom = request.demand.custom.is_some();
                let eligible = Eligible::of(selectors, rankings, books, request, Eligibility::Ranked(id));
                let accept = |slot| {
                    let rank = eligible.rank(slot);
                    let accepted = (rank == first || all && rank.is_eligible())
                        && (!custom || nodes.fits(slot, &request.demand))
                        && eligible.is_candidate(slot);
                    accepted.then_some(rank)
                };
                choose(fragmentation, request, among, nodes, accept, visits)?
            }
        };
        let rank = ranking.rank(slot);
        assert!(rank.is_eligible(), "a node was chosen that the request may not use");
        assert!(nodes.takes_work(slot), "a node was chosen that takes no new work");
        assert!(nodes.fits(slot, &request.demand), "a node was chosen that does not fit");
        let alternative = rank.alternative();
        Some(self.with_instances(books, request, slot, alternative))
    }
}

/// Chooses among `among`, restricted to the candidates if the request names any.
fn choose(
    fragmentation: &mut Fragmentation,
    request: &PlacementRequest,
    among: Among<'_>,
    nodes: &NodeTable,
    accept: impl Fn(Slot) -> Option<Rank>,
    visits: &mut Visits,
) -> Option<Slot> {
    let named = || nodes.named(request).unwrap_or_default();
    let few: Vec<Slot>;
    let among = match (&request.candidates, among) {
        (Some(ids), _) if ids.len() <= WALKED_MAX => {
            few = named();
            Among::Few(&few)
        }
        (None, Among::Few(some)) if some.len() > WALKED_MAX => {
            return fragmentation.choose(request, Among::Listed(&|| some.to_vec()), nodes, accept, visits);
        }
        (Some(_), _) => Among::Listed(&named),
        (None, among) => among,
    };
    fragmentation.choose(request, among, nodes, accept, visits)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::ids::{Incarnation, NodeId, Ordinal, PartitionId, ShardId};
    use crate::index::Geometry;
    use crate::limits::CANDIDATE_WALK_MAX;
    use crate::node::{Labels, NodeRegistration, NodeSpec, Operator, Selector, Taints, Term};
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::{Amount, Demand, GpuRequest};
    use crate::shard::{Command, Home, HybridSettings, Outcome, Park, Shard, ShardConfig, WaitToken};
    use crate::time::Time;

    fn lone() -> Shard {
        Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry: Geometry::default(),
            seed: 0,
            hybrid: HybridSettings::default(),
        })
    }

    fn spec() -> NodeSpec {
        NodeSpec {
            name: "n".into(),
            identity: None,
            cpu: Amount::whole(8),
            memory: Amount::whole(1024),
            gpus: 1,
            custom: None,
            labels: Labels::default(),
            taints: Taints::default(),
        }
    }

    fn node(number: u64, spec: NodeSpec) -> Command {
        let id = NodeId(number);
        let ordinal = Ordinal(number);
        let partition = PartitionId(0);
        Command::AddNode(Box::new(NodeRegistration { id, ordinal, partition, spec, agent: None }))
    }

    /// A core and a device.
    fn request(policy: Policy) -> PlacementRequest {
        let demand = Demand { cpu: Amount::whole(1), gpu: GpuRequest::Whole(1), ..Demand::default() };
        PlacementRequest::new(demand, policy)
    }

    /// A waiting request whose capacity is taken repeatedly before it is tried.
    #[test]
    fn a_request_that_waits_is_counted_once_however_often_it_is_tried() {
        let mut shard = lone();
        let mut step = |command| {
            let mut outcomes = Vec::new();
            shard.step([command], Time(0), &mut outcomes);
            let woken: Vec<WaitToken> = shard.drain_woken().collect();
            (outcomes.remove(0), woken, shard.choose.fragmentation.arrivals())
        };
        step(node(1, spec()));
        let (Outcome::Place(Ok(mut held)), ..) = step(Command::Place(request(Policy::Fgd))) else { panic!() };
        let token = WaitToken { port: 0, number: 1 };
        let request_waiting = request(Policy::Fgd);
        let priority = 0;
        let since = Time(0);
        let home = Home::Here;
        let park = Park { token, request: request_waiting, priority, since, home };
        let (_, _, arrivals) = step(Command::Park(Box::new(park)));
        assert_eq!(arrivals, 2);
        for _ in 0..10 {
            let (_, woken, _) = step(Command::Release(held.allocation));
            assert_eq!(woken, [token]);
            // Uses another policy, so that the request itself is not counted.
            let (Outcome::Place(Ok(again)), ..) = step(Command::Place(request(Policy::BestFit))) else {
                panic!()
            };
            held = again;
            let (outcome, _, arrivals) = step(Command::Retry(token));
            assert!(matches!(outcome, Outcome::Place(Err(_))), "{outcome:?}");
            assert_eq!(arrivals, 2, "a retry is no arrival");
        }
        step(Command::Release(held.allocation));
        let (outcome, _, arrivals) = step(Command::Retry(token));
        assert!(matches!(outcome, Outcome::Place(Ok(_))), "{outcome:?}");
        assert_eq!(arrivals, 2);
        let (.., arrivals) = step(Command::Place(request(Policy::Fgd)));
        assert_eq!(arrivals, 3, "what comes next counts again");
    }

    /// Too many to be rated one by one each time: they are looked for in the lists that are kept.
    #[test]
    fn of_many_nodes_that_a_selector_holds_few_are_looked_at() {
        let mut shard = lone();
        shard.set_typical_shapes(Arc::default());
        let zone: (Arc<str>, Arc<str>) = ("zone".into(), "a".into());
        for number in 1..=CANDIDATE_WALK_MAX as u64 {
            let labels = Labels::new(vec![zone.clone()]).expect("one key");
            shard.step([node(number, NodeSpec { labels, ..spec() })], Time(0), &mut Vec::new());
        }
        let term = Term { key: "zone".into(), operator: Operator::In, values: vec!["a".into()] };
        let selector = Some(Arc::new(Selector::new(vec![term])));
        let request = PlacementRequest { selector, ..request(Policy::Fgd) };
        let mut place = || {
            let before = shard.visits().nodes;
            let mut outcomes = Vec::new();
            shard.step([Command::Place(request.clone())], Time(0), &mut outcomes);
            assert!(matches!(outcomes[0], Outcome::Place(Ok(_))), "{outcomes:?}");
            shard.visits().nodes - before
        };
        // The first one makes the list.
        place();
        for _ in 0..10 {
            let looks = place();
            assert!(looks <= 16, "{looks} looks among {CANDIDATE_WALK_MAX} nodes");
        }
    }
}
